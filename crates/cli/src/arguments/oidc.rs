//! The arguments of `cairn oidc`.

use std::path::PathBuf;

use cairn_base::Interval;
use clap::{Args, Subcommand};

use super::RoleName;

/// `cairn oidc`.
#[derive(Debug, Subcommand)]
pub enum Oidc {
    /// Configure the identity provider, or change its settings
    Set(SetOidc),
    /// Show the identity provider, without the secret
    Show,
    /// Ask the identity provider for its description and keys now
    Test,
    /// Delete the identity provider; sessions of people end, rules stay
    Delete,
    /// Manage rules: the role of people with certain claims
    #[command(subcommand)]
    Rule(OidcRule),
}

/// `cairn oidc set`.
#[derive(Debug, Args)]
pub struct SetOidc {
    /// Address of the provider, as its documentation names the issuer
    #[arg(long, value_name = "URL")]
    pub issuer: Option<String>,
    /// Name of this server at the provider
    #[arg(long, value_name = "ID")]
    pub client_id: Option<String>,
    /// Read the secret of this server there from a file; `-` is stdin
    ///
    /// Without a secret, this server is a public client. Another issuer needs the secret again.
    #[arg(long, value_name = "FILE")]
    pub client_secret_file: Option<PathBuf>,
    /// Forget the secret
    #[arg(long, conflicts_with = "client_secret_file")]
    pub no_client_secret: bool,
    /// Address of the page with the path /oidc, as registered there
    #[arg(long, value_name = "URL")]
    pub redirect_url: Option<String>,
    /// Name on the button of the page (default: the host of the issuer)
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Ask for this scope beside openid; can be repeated
    ///
    /// Default: profile and email, and groups where the provider has it.
    #[arg(long, value_name = "SCOPE")]
    pub scope: Vec<String>,
    /// Ask for the default scopes
    #[arg(long, conflicts_with = "scope")]
    pub default_scopes: bool,
    /// Trust the certificates in this file too (PEM)
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// Trust the certificates of this machine only
    #[arg(long, conflicts_with = "ca")]
    pub no_ca: bool,
}

/// `cairn oidc rule`.
#[derive(Debug, Subcommand)]
pub enum OidcRule {
    /// Give people with these claims a role
    ///
    /// The first rule that matches a person decides. Rules are tried in the order of the list.
    #[command(alias = "add")]
    Create {
        /// Name of the rule
        name: String,
        /// Claim of a person as CLAIM=VALUE; repeat to demand several
        ///
        /// A claim that is a list must contain the value. `email` counts only when the provider has
        /// verified the address.
        #[arg(long, value_name = "CLAIM=VALUE", required = true)]
        claim: Vec<String>,
        /// Permit the requests of this role
        #[arg(long)]
        role: RoleName,
        /// Permit only this volume; can be repeated
        ///
        /// Default: all volumes and the server itself.
        #[arg(long, value_name = "VOLUME")]
        volume: Vec<String>,
        /// Let the rule expire after this time, such as 30d
        #[arg(long, value_name = "TIME")]
        expires: Option<Interval>,
        /// End sessions after this time (default and most: 12h)
        #[arg(long, value_name = "TIME")]
        session: Option<Interval>,
    },
    /// List rules, in the order in which they are tried
    List,
    /// Delete a rule; sessions of its people end
    Delete {
        /// Name of the rule
        name: String,
    },
}
