//! Keys of `cairn top`.

use super::*;

#[test]
fn keys_change_what_is_shown_and_letters_of_a_filter_do_not_end_it() {
    let view = View::new(false);
    let mut view = view.borrow_mut();
    assert_eq!(view.press(b"x"), Pressed::Nothing);
    assert_eq!(view.press(b"s"), Pressed::Redraw);
    assert!(view.keys_line().contains("sort: name"));
    assert_eq!(view.press(b"/qs?"), Pressed::Redraw);
    assert_eq!(view.keys_line(), "filter: qs?_");
    view.press(&[BACKSPACE[1], ENTER[0]]);
    assert!(view.keys_line().ends_with("/ filter: qs"));
    assert_eq!(view.press(b"?"), Pressed::Redraw);
    assert!(view.help);
    assert_eq!(view.press(&[ESCAPE]), Pressed::Redraw);
    assert!(!view.help && view.filter.is_empty());
    assert_eq!(view.press(b"/ab\x03"), Pressed::Leave);
    assert_eq!(View::new(false).borrow_mut().press(b"sq"), Pressed::Leave);
}

#[test]
fn colours_stand_around_lines_and_add_no_columns() {
    let row = Row { tone: Tone::Critical, text: "broken".to_owned() };
    assert_eq!(View::new(true).borrow().paint(&row, 3), "\x1b[31mbro\x1b[0m");
    assert_eq!(View::new(false).borrow().paint(&row, 80), "broken");
}
