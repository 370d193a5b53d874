//! Requests of S3 that the library has no call for: locks, versions, and uploads in progress.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cairn_base::Timestamp;
use http::{HeaderValue, Method};
use md5::{Digest, Md5};
use object_store::aws::{AmazonS3, AwsAuthorizer};
use object_store::client::{HttpClient, HttpRequestBody};

use super::net::bounded;
use super::xml;
use crate::date::utc;
use crate::limits::COLLECTED_MAX;
use crate::store::Piece;

/// Pieces or uploads in one page of a listing.
const PAGE: usize = 1000;

/// A bucket of S3, and the state for its own requests.
#[derive(Debug)]
pub(super) struct S3 {
    pub(super) library: Arc<AmazonS3>,
    pub(super) client: HttpClient,
    pub(super) region: String,
    /// `https://host/bucket` or `https://bucket.host`.
    pub(super) bucket_url: String,
    pub(super) signs_payload: bool,
}

/// A request that failed: the trail has the reason, or the library.
#[derive(Debug)]
pub(super) enum Failed {
    /// An unsuccessful answer.
    Answered,
    /// The answer has no sense.
    Senseless(&'static str),
    Library(object_store::Error),
}

/// An upload in a listing: its key and id.
pub(super) struct Listed {
    pub(super) key: String,
    pub(super) id: String,
}

impl S3 {
    /// Sends a request with a query, signed. Keys and queries are of characters that need no escape
    /// but those in `values`.
    async fn send(
        &self,
        method: Method,
        key: &str,
        query: &str,
        body: Bytes,
        headers: &[(&'static str, String)],
    ) -> Result<Bytes, Failed> {
        let slash = if key.is_empty() { "" } else { "/" };
        let url = format!("{}{slash}{key}?{query}", self.bucket_url);
        let mut request = http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| Failed::Senseless("a header"))?;
            request = request.header(*name, value);
        }
        let request = request.body(HttpRequestBody::from(body));
        let mut request = request.map_err(|_| Failed::Senseless("an address"))?;
        let credential = self.library.credentials().get_credential().await.map_err(Failed::Library)?;
        AwsAuthorizer::new(&credential, "s3", &self.region)
            .with_sign_payload(self.signs_payload)
            .try_authorize(&mut request, None)
            .map_err(Failed::Library)?;
        // The trail has the reason.
        let response = self.client.execute(request).await.map_err(|_| Failed::Answered)?;
        let is_success = response.status().is_success();
        let body = bounded(response.into_body()).await.map_err(|_| Failed::Senseless("a body"))?;
        if is_success { Ok(body) } else { Err(Failed::Answered) }
    }

    /// Locks the newest version of an object.
    pub(super) async fn lock(&self, key: &str, until: Timestamp) -> Result<(), Failed> {
        let body = format!(
            "<Retention xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Mode>COMPLIANCE</Mode><RetainUntilDate>{}</RetainUntilDate></Retention>",
            utc(until)
        );
        // S3 demands a checksum of this body; every store takes this one.
        let digest = STANDARD.encode(Md5::digest(body.as_bytes()));
        let headers = [("content-md5", digest)];
        self.send(Method::PUT, key, "retention=", body.into(), &headers).await.map(|_| ())
    }

    /// Deletes one version of an object permanently.
    pub(super) async fn delete_version(&self, key: &str, version: &str) -> Result<(), Failed> {
        let query = format!("versionId={}", escaped(version));
        self.send(Method::DELETE, key, &query, Bytes::new(), &[]).await.map(|_| ())
    }

    /// The pieces of an upload.
    pub(super) async fn pieces(&self, key: &str, id: &str) -> Result<Vec<Piece>, Failed> {
        let mut pieces: Vec<Piece> = Vec::new();
        loop {
            let after = pieces.last().map_or(0, |piece| piece.number);
            let query = format!("max-parts={PAGE}&part-number-marker={after}&uploadId={}", escaped(id));
            let body = self.send(Method::GET, key, &query, Bytes::new(), &[]).await?;
            let text = std::str::from_utf8(&body).map_err(|_| Failed::Senseless("a list of pieces"))?;
            for part in xml::elements(text, "Part") {
                let number = xml::text(part, "PartNumber").and_then(|number| number.parse().ok());
                let length = xml::text(part, "Size").and_then(|size| size.parse().ok());
                let (Some(number), Some(length), Some(tag)) = (number, length, xml::text(part, "ETag"))
                else {
                    return Err(Failed::Senseless("a list of pieces"));
                };
                pieces.push(Piece { number, length, tag });
            }
            let more = xml::text(text, "IsTruncated").as_deref() == Some("true");
            if !more || pieces.last().map_or(0, |piece| piece.number) <= after {
                return Ok(pieces);
            }
        }
    }

    /// Uploads whose key begins with a prefix.
    pub(super) async fn uploads(&self, prefix: &str) -> Result<Vec<Listed>, Failed> {
        let mut uploads: Vec<Listed> = Vec::new();
        let mut marker = String::new();
        loop {
            let query = format!("max-uploads={PAGE}&prefix={}{marker}&uploads=", escaped(prefix));
            let query = sorted(&query);
            let body = self.send(Method::GET, "", &query, Bytes::new(), &[]).await?;
            let text = std::str::from_utf8(&body).map_err(|_| Failed::Senseless("a list of uploads"))?;
            for upload in xml::elements(text, "Upload") {
                let (Some(key), Some(id)) = (xml::text(upload, "Key"), xml::text(upload, "UploadId")) else {
                    return Err(Failed::Senseless("a list of uploads"));
                };
                uploads.push(Listed { key, id });
            }
            let next = (xml::text(text, "NextKeyMarker"), xml::text(text, "NextUploadIdMarker"));
            let next = match next {
                (Some(key), Some(id)) if xml::text(text, "IsTruncated").as_deref() == Some("true") => {
                    format!("&key-marker={}&upload-id-marker={}", escaped(&key), escaped(&id))
                }
                _ => return Ok(uploads),
            };
            if next == marker || uploads.len() > COLLECTED_MAX {
                return Err(Failed::Senseless("a list of uploads does not end"));
            }
            marker = next;
        }
    }
}

/// The parts of a query in order of their names, as the signature wants them.
fn sorted(query: &str) -> String {
    let mut parts: Vec<&str> = query.split('&').collect();
    parts.sort_unstable();
    parts.join("&")
}

/// A value in a query.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}
