//! Tests of what tells the requests of the page from those of others.

use super::*;

fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
    pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
}

#[test]
fn request_of_another_site_is_not_from_the_page() {
    let host = (HOST, "storage1:7400");
    assert!(is_from_page(&headers(std::slice::from_ref(&host))), "a program that is no browser");
    assert!(is_from_page(&headers(&[host.clone(), (ORIGIN, "http://storage1:7400"), (SITE, "same-origin")])));
    for origin in ["http://storage1:7401", "http://evil.example", "null", "", "storage1:7400"] {
        assert!(!is_from_page(&headers(&[host.clone(), (ORIGIN, origin)])), "{origin}");
    }
    for site in ["cross-site", "same-site", "none", ""] {
        assert!(!is_from_page(&headers(&[host.clone(), (SITE, site)])), "{site}");
    }
}

#[test]
fn cookie_is_that_of_the_port() {
    let sent = "other=1; cairn-7401=two; cairn-7400=one";
    let of = |host: &str| cookie(&headers(&[(HOST, host), (COOKIE, sent)])).map(str::to_owned);
    assert_eq!(of("127.0.0.1:7400").as_deref(), Some("one"));
    assert_eq!(of("[::1]:7401").as_deref(), Some("two"));
    assert_eq!(of("127.0.0.1"), None);
    assert_eq!(of("127.0.0.1:"), None);
}

#[test]
fn cookie_is_out_of_reach_for_scripts_and_for_other_sites() {
    let set = set_cookie(SESSION, &headers(&[(HOST, "a:7400"), (ORIGIN, "http://a:7400")]), "x", None);
    assert_eq!(set, "cairn-7400=x; Path=/; HttpOnly; SameSite=Strict");
    let set = set_cookie(SESSION, &headers(&[(HOST, "a.example"), (ORIGIN, "https://a.example")]), "x", None);
    assert_eq!(set, "cairn-session=x; Path=/; HttpOnly; SameSite=Strict; Secure");
    assert!(set_cookie(SESSION, &headers(&[]), "", Some(0)).ends_with("; Max-Age=0"));
}
