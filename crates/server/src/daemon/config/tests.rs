//! Files and the order of settings.

use super::*;

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
