//! The proof of the pre-shared key.

use crate::limits::{AUTH_KEY_BYTES_MAX, AUTH_KEY_BYTES_MIN, AUTH_NONCE_BYTES, AUTH_PROOF_BYTES};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// What the proof says before the nonce, so that it can't be taken from another protocol.
pub const AUTH_CONTEXT: &[u8] = b"corelane v1 client";

/// A pre-shared key, ready to use: making proofs with it allocates nothing.
#[derive(Clone)]
pub struct Key(Hmac<Sha256>);

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Key(..)")
    }
}

/// The key is too short or too long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyLengthError {
    /// Bytes given.
    pub len: usize,
}

impl core::fmt::Display for KeyLengthError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "a pre-shared key of {} bytes; it must have {AUTH_KEY_BYTES_MIN} to {AUTH_KEY_BYTES_MAX}",
            self.len
        )
    }
}

impl core::error::Error for KeyLengthError {}

impl Key {
    /// A key of [`AUTH_KEY_BYTES_MIN`] to [`AUTH_KEY_BYTES_MAX`] bytes.
    pub fn new(key: &[u8]) -> Result<Key, KeyLengthError> {
        let error = KeyLengthError { len: key.len() };
        if !(AUTH_KEY_BYTES_MIN..=AUTH_KEY_BYTES_MAX).contains(&key.len()) {
            return Err(error);
        }
        Ok(Key(Hmac::new_from_slice(key).map_err(|_| error)?))
    }
    fn mac(&self, nonce: &[u8; AUTH_NONCE_BYTES]) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(AUTH_CONTEXT);
        mac.update(nonce);
        mac
    }
    /// The proof that answers `nonce`.
    pub fn prove(&self, nonce: &[u8; AUTH_NONCE_BYTES]) -> [u8; AUTH_PROOF_BYTES] {
        self.mac(nonce).finalize().into_bytes().into()
    }
    /// Whether `proof` answers `nonce`; takes the same time wherever it is wrong.
    pub fn verify(&self, nonce: &[u8; AUTH_NONCE_BYTES], proof: &[u8; AUTH_PROOF_BYTES]) -> bool {
        self.mac(nonce).verify_slice(proof).is_ok()
    }
}
