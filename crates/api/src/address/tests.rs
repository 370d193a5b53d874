//! Addresses.

use super::*;

#[test]
fn addresses_are_read_and_shown_alike() {
    for text in ["off", "127.0.0.1:7420", "[::1]:0", "storage.example:10809", "unix:/run/cairn/nbd.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in ["", "7420", "host:", ":80", "::1:80", "unix:"] {
        assert_eq!(text.parse::<Address>(), Err(InvalidAddress::Form), "{text}");
    }
    for text in ["host:99999", "host:-1", "host:http"] {
        assert_eq!(text.parse::<Address>(), Err(InvalidAddress::Port), "{text}");
    }
}
