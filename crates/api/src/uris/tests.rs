//! URIs.

use super::*;

#[test]
fn uris_escape_what_a_uri_cannot_hold() {
    let uri = unix_uri(Path::new("/srv/my data/nbd&x.sock"), "vol0@s1/db");
    assert_eq!(uri, "nbd+unix:///vol0%40s1/db?socket=/srv/my%20data/nbd%26x.sock");
    assert_eq!(tcp_uri("[::1]:10809", "v/l"), "nbd://[::1]:10809/v/l");
}
