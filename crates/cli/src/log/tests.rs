//! The log against hostile input.

use std::io;

use tracing_subscriber::fmt::MakeWriter;

use super::*;

#[derive(Clone, Default)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Written {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The log lines while `act` runs.
fn logged(act: impl FnOnce()) -> String {
    let written = Written::default();
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .fmt_fields(Harmless)
        .with_writer(written.clone());
    let subscriber = registry().with(layer.with_filter(Limit(Arc::default())));
    tracing::subscriber::with_default(subscriber, act);
    let bytes = written.0.lock().clone();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn names_from_outside_forge_no_line_and_say_nothing_to_a_terminal() {
    let name = "v\n2026-01-01 ERROR forged\r\u{1b}[2J\u{9b}31m\u{7f}\u{202e}x\u{2028}y";
    let error = io::Error::other(name);
    let text = logged(|| {
        tracing::warn!(volume = name, peer = %name, other = ?name, %error, error2 = &error as &dyn std::error::Error, "a name: {name}");
        tracing::warn!(message = name);
    });
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.chars().all(|letter| letter == '\n' || !letter.is_control()), "{text:?}");
    assert!(!text.contains('\u{202e}') && !text.contains('\u{2028}'));
    assert!(text.contains("a name: v\\n2026-01-01 ERROR forged\\r\\u{1b}[2J"), "{text}");
    assert_eq!(
        logged(|| tracing::info!(count = 3, name = "a b", "plain")),
        " INFO plain count=3 name=\"a b\"\n"
    );
}

#[test]
fn flood_of_lines_of_one_kind_is_cut_and_hides_no_other() {
    let text = logged(|| {
        for number in 0..10_000 {
            tracing::warn!(number, "a stranger was refused");
        }
        tracing::warn!("another kind");
    });
    let count = |kind: &str| text.lines().filter(|line| line.contains(kind)).count();
    assert_eq!((count("a stranger was refused"), count("another kind")), (LINES_MAX as usize, 1));
}

#[test]
fn what_was_left_out_is_counted_and_told() {
    struct Site;
    impl tracing::Callsite for Site {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("only its identity is asked for")
        }
    }
    static SITE: Site = Site;
    let (lines, begin) = (Lines::default(), Instant::now());
    let admit = |now| lines.admit(tracing::callsite::Identifier(&SITE), now, || "x".to_owned());
    for _ in 0..LINES_MAX {
        assert_eq!(admit(begin), (true, false));
    }
    assert_eq!(admit(begin), (false, true));
    assert_eq!(admit(begin + STRETCH / 2), (false, false), "the first one has begun to tell");
    assert!(lines.left_out(begin + STRETCH / 2).is_empty());
    assert_eq!(lines.left_out(begin + STRETCH), [(2, "x".to_owned())]);
    assert!(lines.is_empty());
    assert_eq!(admit(begin + STRETCH), (true, false), "it begins anew");
    assert_eq!(admit(begin + 3 * STRETCH), (true, false));
    assert!(lines.left_out(begin + 9 * STRETCH).is_empty(), "nothing was left out");
}
