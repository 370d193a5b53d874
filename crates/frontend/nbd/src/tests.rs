//! Tests of the parts that need no socket.

use crate::address::Address;

#[test]
fn addresses_read_as_they_are_written() {
    for text in ["127.0.0.1:10809", "[::1]:0", "host.example:1", "unix:/run/x.sock", "unix:relative"] {
        assert_eq!(text.parse::<Address>().map(|address| address.to_string()).as_deref(), Ok(text));
    }
    for text in ["", "unix:", "10809", ":1", "host:", "host:99999"] {
        assert!(text.parse::<Address>().is_err(), "{text:?}");
    }
}
