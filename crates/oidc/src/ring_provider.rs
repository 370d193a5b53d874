//! The signatures of ID tokens, verified by ring, as the library for tokens takes them.
//!
//! The library brings other implementations, which would add an RSA and two curves to the tree. It
//! signs nothing here, so the factory of signers refuses.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result, new_error};
use jsonwebtoken::signature::{Error, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{self as of_ring, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: refuse_to_sign,
    verifier_factory: verifier,
    // For thumbprints and keys that are written, of which there are none.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has the library use ring, from the first call on.
pub(crate) fn install() {
    // It fails when it was done before.
    let _ = PROVIDER.install_default();
}

fn refuse_to_sign(_: &Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    Err(new_error(ErrorKind::UnsupportedAlgorithm))
}

/// How a signature is verified.
enum Way {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn of_ring::VerificationAlgorithm),
}

/// The asymmetric algorithms that ring has.
fn way_of(algorithm: Algorithm) -> Option<Way> {
    Some(match algorithm {
        Algorithm::RS256 => Way::Rsa(&of_ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Way::Rsa(&of_ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Way::Rsa(&of_ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Way::Rsa(&of_ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Way::Rsa(&of_ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Way::Rsa(&of_ring::RSA_PSS_2048_8192_SHA512),
        Algorithm::ES256 => Way::Curve(&of_ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Way::Curve(&of_ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Way::Curve(&of_ring::ED25519),
        _ => return None,
    })
}

struct RingVerifier {
    algorithm: Algorithm,
    way: Way,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    let unsupported = || new_error(ErrorKind::UnsupportedAlgorithm);
    let way = way_of(*algorithm).ok_or_else(unsupported)?;
    if key.family() != algorithm.family() {
        return Err(new_error(ErrorKind::InvalidKeyFormat));
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, way, key: key.clone() }))
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> std::result::Result<(), Error> {
        let outcome = match (&self.way, self.key.kind()) {
            (Way::Rsa(way), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                RsaPublicKeyComponents { n, e }.verify(way, message, signature)
            }
            (Way::Curve(way), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*way, point).verify(message, signature)
            }
            _ => return Err(Error::new()),
        };
        outcome.map_err(|_| Error::new())
    }
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

#[cfg(test)]
mod tests {
    use jsonwebtoken::crypto::verify;

    use super::*;

    /// RFC 7515, appendix A.2: a signature by RS256 with its public key.
    #[test]
    fn signature_of_the_specification_is_valid_and_a_changed_one_is_not() {
        install();
        let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4Ql\
                 L-yRT-SFd2lZS-pCgNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsL\
                 A9e-KXBdQOS-UTo7WTBEMa2R2CapHg665xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8\
                 NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyuXpoQ";
        let message = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS\
                       9pc19yb290Ijp0cnVlfQ";
        let signature = "cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5ju\
                         jGbds9uJdbF9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07\
                         Qe7K0GarZRmB_eSN9383LcOLn6_dO--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipU\
                         TI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_IoypGlUPQGe77Rw";
        let key = DecodingKey::from_rsa_components(n, "AQAB").unwrap();
        let is_valid = |message: &str| verify(signature, message.as_bytes(), &key, Algorithm::RS256).unwrap();
        assert!(is_valid(message));
        assert!(!is_valid(&message.replace("eyJpc3", "eyJpc4")));
        assert!(verify(signature, message.as_bytes(), &key, Algorithm::ES256).is_err(), "another family");
        assert!(!verify(signature, message.as_bytes(), &key, Algorithm::PS256).unwrap_or(false));
    }

    #[test]
    fn symmetric_algorithms_are_refused_and_nothing_is_signed() {
        install();
        let key = DecodingKey::from_secret(b"a public key as a secret").unwrap();
        assert!(verify("AAAA", b"text", &key, Algorithm::HS256).is_err());
        let own = EncodingKey::from_secret(b"secret").unwrap();
        assert!(jsonwebtoken::crypto::sign(b"text", &own, Algorithm::HS256).is_err());
    }
}
