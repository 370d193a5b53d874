//! The input of the rules: the files that git tracks or would track, and the packages that cargo
//! sees.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::Package;

/// A file of the repository.
#[derive(Debug, Clone)]
pub struct File {
    /// From the root of the repository, with `/`.
    pub path: String,
    /// Bytes.
    pub length: u64,
    /// The content; empty when it is not UTF-8.
    pub text: String,
}

impl File {
    /// Tests, benches and examples: the rules on the product's code do not hold for them.
    pub fn is_test(&self) -> bool {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name == "tests.rs"
            || self
                .path
                .split('/')
                .rev()
                .skip(1)
                .any(|folder| matches!(folder, "tests" | "examples" | "benches"))
    }

    /// Written in Rust, and not by a generator.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs") && self.path != GENERATED
    }
}

/// The only file in Rust that a program makes.
const GENERATED: &str = "crates/proto/csi/generated/csi.v1.rs";

/// A checkout.
pub struct Repository {
    root: PathBuf,
}

impl Repository {
    /// The repository that this crate was built from.
    pub fn here() -> Self {
        let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        Self { root: crate_folder.parent().unwrap_or(crate_folder).to_owned() }
    }

    /// Every file that is tracked, or new and not ignored. Files that are deleted but still tracked
    /// are left out.
    pub fn files(&self) -> Result<Vec<File>> {
        let listed = self.output("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut paths: Vec<&str> = listed.split('\0').filter(|path| !path.is_empty()).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::new();
        for path in paths {
            let full = self.root.join(path);
            let Ok(metadata) = full.symlink_metadata() else { continue };
            if !metadata.is_file() {
                continue;
            }
            let text =
                String::from_utf8(std::fs::read(&full).with_context(|| path.to_owned())?).unwrap_or_default();
            files.push(File { path: path.to_owned(), length: metadata.len(), text });
        }
        if files.is_empty() {
            bail!("git lists no files in {}", self.root.display());
        }
        Ok(files)
    }

    /// The text of a file, by its path from the root.
    pub fn read(&self, path: &str) -> Result<String> {
        std::fs::read_to_string(self.root.join(path)).with_context(|| path.to_owned())
    }

    /// The members of the workspace with their direct dependencies.
    pub fn packages(&self) -> Result<Vec<Package>> {
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
        let metadata = self.output(&cargo, &["metadata", "--format-version=1", "--no-deps", "--offline"])?;
        let metadata: Value = serde_json::from_str(&metadata).context("cargo metadata")?;
        let mut packages = Vec::new();
        for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
            let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let manifest = PathBuf::from(text(&package["manifest_path"]));
            let folder = manifest.parent().and_then(|folder| folder.strip_prefix(&self.root).ok());
            let mut package_read = Package {
                name: text(&package["name"]),
                folder: folder.context("a package outside the repository")?.to_string_lossy().into_owned(),
                ours: Vec::new(),
                foreign: Vec::new(),
            };
            for dependency in package["dependencies"].as_array().into_iter().flatten() {
                let name = text(&dependency["name"]);
                let for_tests = dependency["kind"] == "dev";
                if dependency["path"].is_string() {
                    package_read.ours.push((name, for_tests));
                } else {
                    package_read.foreign.push(name);
                }
            }
            packages.push(package_read);
        }
        Ok(packages)
    }

    fn output(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let output = Command::new(program)
            .args(arguments)
            .current_dir(&self.root)
            .output()
            .with_context(|| format!("{program} did not start"))?;
        if !output.status.success() {
            bail!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(String::from_utf8(output.stdout)?)
    }
}
