//! Which names complete a word.

use super::*;

fn kind_at(line: &str) -> Option<Kind> {
    let mut command = Arguments::command();
    command.build();
    let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    wanted(&command, &words).map(|wanted| wanted.kind)
}

#[test]
fn word_is_completed_by_the_names_that_its_command_takes() {
    for (line, kind) in [
        ("cairn volume show ", Some(Kind::Volume)),
        ("cairn --data /d volume delete -n vo", Some(Kind::Volume)),
        ("cairn lun delete ", Some(Kind::Lun)),
        ("cairn lun create v", Some(Kind::NewLun)),
        ("cairn snapshot delete v@a v@", Some(Kind::Snapshot)),
        ("cairn snapshot create ", Some(Kind::NewSnapshot)),
        ("cairn snapshot create --group ", Some(Kind::Group)),
        ("cairn snapshot revert v", Some(Kind::Tree)),
        ("cairn snapshot schedule set ", Some(Kind::Volume)),
        ("cairn snapshot schedule set v ", None),
        ("cairn mirror status ", Some(Kind::Mirror)),
        ("cairn mirror update --within 5m ", Some(Kind::Mirror)),
        ("cairn mirror forget v ", Some(Kind::Follower)),
        ("cairn mirror allow-reverse v --mirror ", Some(Kind::Follower)),
        ("cairn peer rename ", Some(Kind::Peer)),
        ("cairn peer rename a ", None),
        ("cairn job cancel ", Some(Kind::Job)),
        ("cairn history revert d", Some(Kind::History)),
        ("cairn group create g v1 v2 ", Some(Kind::Volume)),
        ("cairn mount ", Some(Kind::Tree)),
        ("cairn volume create ", None),
        ("cairn volume show --", None),
        ("cairn vol", None),
        ("cairn", None),
    ] {
        assert_eq!(kind_at(line), kind, "{line:?}");
    }
}

#[test]
fn server_is_the_one_that_the_line_names() {
    let mut command = Arguments::command();
    command.build();
    let words = ["cairn", "--data", "/srv/d", "volume", "show", ""].map(str::to_owned);
    assert_eq!(wanted(&command, &words).unwrap().data.as_deref(), Some("/srv/d"));
}
