use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::*;

const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn part_that_fails_or_panics_ends_the_others_and_is_told() {
    for (panics, which) in [(false, 0), (false, 2), (true, 0), (true, 2)] {
        let (told, ended) = channel();
        std::thread::spawn(move || {
            let gone = AtomicBool::new(false);
            let files: Vec<File> = (0..3).map(|_| File::open("/dev/null").expect("it is there")).collect();
            let outcome = side_by_side(&files, &gone, |part, _| {
                if part == which {
                    assert!(!panics, "on purpose");
                    return Err(ServerError::Bug);
                }
                let until = Instant::now() + 2 * PATIENCE;
                while !gone.load(Ordering::Relaxed) && Instant::now() < until {
                    std::thread::yield_now();
                }
                Err::<(), _>(DumpError::from(StreamError::Cancelled).into())
            });
            told.send(matches!(outcome, Err(ServerError::Bug)))
        });
        let is_told = ended.recv_timeout(PATIENCE);
        assert_eq!(is_told, Ok(true), "panics: {panics}, part {which}");
    }
    let (gone, files) = (AtomicBool::new(false), [File::open("/dev/null").expect("it is there")]);
    assert_eq!(side_by_side(&files, &gone, |part, _| Ok(part)).expect("none fails"), [0]);
    assert!(!gone.load(Ordering::Relaxed), "only a failure ends them");
}
