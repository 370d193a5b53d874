//! Addresses, files and the order of settings.

use super::*;

#[test]
fn addresses_are_read_and_shown_alike() {
    for text in ["off", "127.0.0.1:7420", "[::1]:0", "storage.example:10809", "unix:/run/cairn/nbd.sock"] {
        assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
    }
    for text in ["", "7420", "host:", ":80", "host:99999", "::1:80", "unix:"] {
        assert_eq!(text.parse::<Address>(), Err(InvalidAddress), "{text}");
    }
}

#[test]
fn command_line_goes_before_file_goes_before_defaults() {
    let file: Settings = toml::from_str("data = '/srv/cairn'\nmirror = 'off'\ncache = '64M'").unwrap();
    let line = Settings { data: Some("/tmp/x".into()), ..Settings::default() };
    let config = Config::new(line.over(file)).unwrap();
    assert_eq!(config.data, PathBuf::from("/tmp/x"));
    assert_eq!(config.mirror, Address::Off);
    assert_eq!(config.cache, ByteSize(64 << 20));
    assert_eq!(config.nbd, [Address::Tcp(DEFAULT_NBD.to_owned())]);
    assert_eq!(config.http, Address::Off, "TCP HTTP is off unless told");
}

#[test]
fn unknown_field_in_a_file_is_refused() {
    assert!(toml::from_str::<Settings>("dat = '/srv'").is_err());
}
