//! A provider for tests: a small HTTP server on a loopback address with keys of its own.
//!
//! It knows one person, asks for no password, and does wrong what a test wants.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

/// The name of this server at the provider, and its secret there.
pub const CLIENT: (&str, &str) = ("cairn", "the client's secret: 100% +/&");

/// A connection that hangs ends with the test.
const HANG: Duration = Duration::from_secs(60);

/// The fault of each ID token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wrong {
    /// None.
    #[default]
    Nothing,
    /// It has the nonce of another sign-in.
    Nonce,
    /// It has no nonce.
    NoNonce,
    /// It is for another client.
    Audience,
    /// It is for this client and for another one that asked.
    Party,
    /// It is of another issuer.
    Issuer,
    /// It has expired.
    Expired,
    /// It does not tell when it expires.
    NoExpiry,
    /// It is of the future.
    Future,
    /// It has no subject.
    NoSubject,
    /// It is not signed.
    Unsigned,
    /// It is signed by HMAC with the public key as the secret.
    PublicKeyAsSecret,
    /// It is signed by HMAC with the client's secret.
    ClientSecret,
    /// It names a key that the provider does not publish.
    UnknownKey,
    /// It names the key of another algorithm.
    OtherKey,
    /// A claim was changed after it was signed.
    Changed,
    /// It is no token at all.
    Garbage,
}

/// How the provider answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mood {
    /// As it must.
    #[default]
    Well,
    /// Not at all: connections stay open.
    Hangs,
    /// Connections end at once.
    Ends,
    /// With an error of its own.
    Fails,
}

/// The behaviour of the provider, which a test changes.
#[derive(Debug, Clone, Default)]
pub struct Script {
    /// The fault of tokens.
    pub wrong: Wrong,
    /// How it answers.
    pub mood: Mood,
    /// Fields of the description that are others.
    pub description: Map<String, Value>,
    /// Claims of the person.
    pub claims: Map<String, Value>,
    /// Claims that are not in the token, and that have to be fetched; none: there is no such place.
    pub further: Option<Map<String, Value>>,
    /// Tokens are signed by the second key (Ed25519), which is published from then on.
    pub second_key: bool,
    /// The wall clock of the provider, in seconds; none: that of the machine.
    pub now_s: Option<u64>,
    /// Requests so far, by path.
    pub requests: BTreeMap<String, usize>,
}

struct Code {
    nonce: String,
    challenge: String,
    redirect: String,
}

struct Shared {
    issuer: String,
    script: Mutex<Script>,
    codes: Mutex<BTreeMap<String, Code>>,
    first: EcdsaKeyPair,
    second: Ed25519KeyPair,
    random: SystemRandom,
}

/// A provider that serves until the program ends.
pub struct FakeProvider {
    shared: Arc<Shared>,
    /// Where it listens.
    pub address: SocketAddr,
}

impl FakeProvider {
    /// Starts it.
    ///
    /// # Panics
    /// If the machine gives no port or no random bytes.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let first = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
        let first = EcdsaKeyPair::from_pkcs8(algorithm, first.as_ref(), &random).expect("a key");
        let second = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
        let second = Ed25519KeyPair::from_pkcs8(second.as_ref()).expect("a key");
        let claims = json!({
            "sub": "subject-7", "email": "ann@example.com", "email_verified": true, "groups": ["staff", "storage"],
        });
        let script = Script { claims: claims.as_object().cloned().unwrap_or_default(), ..Script::default() };
        let shared = Arc::new(Shared {
            // Another site than 127.0.0.1, at which the page of a test is.
            issuer: format!("http://localhost:{}/realm", address.port()),
            script: Mutex::new(script),
            codes: Mutex::default(),
            first,
            second,
            random,
        });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.converse(stream));
            }
        });
        Self { shared, address }
    }

    /// Its address in tokens.
    pub fn issuer(&self) -> &str {
        &self.shared.issuer
    }

    /// Changes its behaviour.
    pub fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.shared.script.lock());
    }

    /// Requests so far for a path such as `/realm/token`.
    pub fn requests(&self, path: &str) -> usize {
        self.shared.script.lock().requests.get(path).copied().unwrap_or(0)
    }

    /// The person agrees: the query with which a browser returns, for the address of a sign-in.
    pub fn agree(&self, url: &str) -> Vec<(String, String)> {
        let (_, query) = url.split_once('?').unwrap_or_default();
        self.shared.agree(query).1
    }
}

fn parsed(query: &str) -> BTreeMap<String, String> {
    form_urlencoded::parse(query.as_bytes()).into_owned().collect()
}

fn digest(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(Sha256::digest(text.as_bytes()))
}

impl Shared {
    fn now_s(&self) -> u64 {
        let machine =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs());
        self.script.lock().now_s.unwrap_or(machine)
    }

    /// The address to return to, and the parameters for it.
    fn agree(&self, query: &str) -> (String, Vec<(String, String)>) {
        let asked = parsed(query);
        let get = |name: &str| asked.get(name).cloned().unwrap_or_default();
        let redirect = get("redirect_uri");
        let is_right = get("response_type") == "code"
            && get("client_id") == CLIENT.0
            && get("code_challenge_method") == "S256"
            && get("scope").split(' ').any(|scope| scope == "openid");
        let outcome = if is_right {
            let code = format!("code-{}", digest(&get("state")));
            let kept =
                Code { nonce: get("nonce"), challenge: get("code_challenge"), redirect: redirect.clone() };
            self.codes.lock().insert(code.clone(), kept);
            ("code".to_owned(), code)
        } else {
            ("error".to_owned(), "invalid_request".to_owned())
        };
        (redirect, vec![outcome, ("state".to_owned(), get("state"))])
    }

    fn converse(&self, mut stream: TcpStream) {
        let Some((method, target, headers, body)) = request_of(&stream) else { return };
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        let mood = {
            let mut script = self.script.lock();
            *script.requests.entry(path.to_owned()).or_default() += 1;
            script.mood
        };
        let (status, more, text) = match (mood, &method[..], path) {
            (Mood::Hangs, _, _) => return std::thread::sleep(HANG),
            (Mood::Ends, _, _) => return,
            (Mood::Fails, _, _) => (500, String::new(), "{}".to_owned()),
            (_, "GET", "/realm/.well-known/openid-configuration") => (200, String::new(), self.description()),
            (_, "GET", "/realm/keys") => (200, String::new(), self.keys()),
            (_, "GET", "/realm/person") => self.person(&headers),
            (_, "GET", "/realm/authorize") => {
                let (redirect, query) = self.agree(query);
                let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
                (302, format!("location: {redirect}?{query}\r\n"), String::new())
            }
            (_, "POST", "/realm/token") => {
                let (status, text) = self.exchange(&headers, &body);
                (status, String::new(), text)
            }
            _ => (404, String::new(), "{}".to_owned()),
        };
        let length = text.len();
        let head = format!("HTTP/1.1 {status} x\r\n{more}content-type: application/json\r\n");
        let _ = write!(stream, "{head}content-length: {length}\r\nconnection: close\r\n\r\n{text}");
    }

    fn description(&self) -> String {
        let issuer = &self.issuer;
        let mut description = json!({
            "issuer": issuer,
            "authorization_endpoint": format!("{issuer}/authorize"),
            "token_endpoint": format!("{issuer}/token"),
            "jwks_uri": format!("{issuer}/keys"),
            "scopes_supported": ["openid", "email", "groups"],
            "code_challenge_methods_supported": ["S256"],
        });
        let script = self.script.lock().clone();
        if script.further.is_some() {
            description["userinfo_endpoint"] = format!("{issuer}/person").into();
        }
        for (name, value) in script.description {
            description[name] = value;
        }
        description.to_string()
    }

    fn person(&self, headers: &str) -> (u16, String, String) {
        let further =
            self.script.lock().further.clone().filter(|_| headers.contains(": Bearer of-the-person"));
        match further {
            Some(further) => (200, String::new(), Value::Object(further).to_string()),
            None => (401, String::new(), "{}".to_owned()),
        }
    }

    fn keys(&self) -> String {
        let point = self.first.public_key().as_ref();
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (x, y) = (encode(&point[1..33]), encode(&point[33..65]));
        let strange = json!({ "kty": "EC", "crv": "secp256k1", "kid": "strange", "x": "AA", "y": "AA" });
        let first = json!({ "kty": "EC", "crv": "P-256", "kid": "first", "alg": "ES256", "use": "sig", "x": x, "y": y });
        let second = encode(self.second.public_key().as_ref());
        let second = json!({ "kty": "OKP", "crv": "Ed25519", "kid": "second", "x": second });
        let mut keys = vec![strange, first];
        keys.extend(self.script.lock().second_key.then_some(second));
        json!({ "keys": keys }).to_string()
    }

    fn exchange(&self, headers: &str, body: &str) -> (u16, String) {
        let refuse = |error: &str| (400, json!({ "error": error }).to_string());
        let encode = |text: &str| form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        let form = parsed(body);
        let get = |name: &str| form.get(name).cloned().unwrap_or_default();
        let basic = STANDARD.encode(format!("{}:{}", encode(CLIENT.0), encode(CLIENT.1)));
        let by_header = headers.contains(&format!("authorization: Basic {basic}"));
        let by_form = get("client_id") == CLIENT.0 && get("client_secret") == CLIENT.1;
        if !by_header && !by_form {
            return (401, json!({ "error": "invalid_client" }).to_string());
        }
        // A code works once.
        let Some(code) = self.codes.lock().remove(&get("code")) else { return refuse("invalid_grant") };
        let fits = get("grant_type") == "authorization_code"
            && get("redirect_uri") == code.redirect
            && digest(&get("code_verifier")) == code.challenge;
        if !fits {
            return refuse("invalid_grant");
        }
        (
            200,
            json!({ "access_token": "of-the-person", "token_type": "Bearer", "id_token": self.token(&code) })
                .to_string(),
        )
    }

    fn token(&self, code: &Code) -> String {
        let script = self.script.lock().clone();
        let now_s = self.now_s();
        let mut claims = Value::Object(script.claims.clone());
        claims["iss"] = self.issuer.clone().into();
        claims["aud"] = CLIENT.0.into();
        claims["nonce"] = code.nonce.clone().into();
        claims["iat"] = now_s.into();
        claims["exp"] = (now_s + 300).into();
        let mut header = json!({ "alg": "ES256", "typ": "JWT", "kid": "first" });
        if script.second_key {
            header = json!({ "alg": "EdDSA", "kid": "second" });
        }
        let remove = |claims: &mut Value, name: &str| {
            claims.as_object_mut().and_then(|claims| claims.remove(name));
        };
        match script.wrong {
            Wrong::Nonce => claims["nonce"] = "of another sign-in".into(),
            Wrong::NoNonce => remove(&mut claims, "nonce"),
            Wrong::Audience => claims["aud"] = json!(["another", "third"]),
            Wrong::Party => {
                claims["aud"] = json!(["another", CLIENT.0]);
                claims["azp"] = "another".into();
            }
            Wrong::Issuer => claims["iss"] = "https://another.example.com".into(),
            Wrong::Expired => claims["exp"] = (now_s - 60).into(),
            Wrong::NoExpiry => remove(&mut claims, "exp"),
            Wrong::Future => claims["nbf"] = (now_s + 600).into(),
            Wrong::NoSubject => remove(&mut claims, "sub"),
            Wrong::Unsigned => header["alg"] = "none".into(),
            Wrong::PublicKeyAsSecret | Wrong::ClientSecret => header["alg"] = "HS256".into(),
            Wrong::UnknownKey => header["kid"] = "unknown".into(),
            Wrong::OtherKey => header["alg"] = "RS256".into(),
            Wrong::Nothing | Wrong::Changed => {}
            Wrong::Garbage => return "no.token".to_owned(),
        }
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let mut message = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.sign(&script, message.as_bytes());
        if script.wrong == Wrong::Changed {
            claims["groups"] = json!(["storage-admins"]);
            message = format!("{}.{}", encode(&header), encode(&claims));
        }
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn sign(&self, script: &Script, message: &[u8]) -> Vec<u8> {
        let by_hmac = |secret: &[u8]| {
            let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret);
            ring::hmac::sign(&key, message).as_ref().to_vec()
        };
        match script.wrong {
            Wrong::Unsigned => Vec::new(),
            Wrong::PublicKeyAsSecret => by_hmac(self.first.public_key().as_ref()),
            Wrong::ClientSecret => by_hmac(CLIENT.1.as_bytes()),
            _ if script.second_key => self.second.sign(message).as_ref().to_vec(),
            _ => self
                .first
                .sign(&self.random, message)
                .map_or_else(|_| Vec::new(), |made| made.as_ref().to_vec()),
        }
    }
}

/// The method, the target, the headers with names in small letters, and the body of a request.
fn request_of(stream: &TcpStream) -> Option<(String, String, String, String)> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut headers, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        let name = name.to_ascii_lowercase();
        if name == "content-length" {
            length = value.parse().ok()?;
        }
        headers.push_str(&format!("{name}: {value}\n"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((method, target, headers, String::from_utf8(body).ok()?))
}
