use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use super::*;

const HELPERS: usize = 4;
/// More memory than available.
const STACK: usize = usize::MAX / 2;
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
fn helpers_run_all_together_or_where_one_has_no_thread_not_at_all() {
    for lacks in 0..=HELPERS {
        let (told, ended) = channel();
        std::thread::spawn(move || {
            let (ran, own_ran) = (AtomicUsize::new(0), Cell::new(false));
            // No item is received before all of them and the caller run.
            let (give, take) = sync_channel(0);
            let ran_one = &ran;
            let helper = |number: usize| -> Helper<'_> {
                let give = give.clone();
                Box::new(move || {
                    ran_one.fetch_add(1, Ordering::Relaxed);
                    give.send(number).expect("it takes them");
                })
            };
            let helpers = (1..=HELPERS).map(helper).collect();
            let own: Own<'_> = Box::new(|| {
                own_ran.set(true);
                let mut taken: Vec<usize> = take.iter().take(HELPERS).collect();
                taken.sort_unstable();
                assert_eq!(taken, (1..=HELPERS).collect::<Vec<_>>());
            });
            let mut asked = 0;
            let outcome = beside(helpers, own, &mut || {
                asked += 1;
                Builder::new().stack_size(if asked == lacks { STACK } else { 1 << 20 })
            });
            told.send((outcome.is_ok(), ran.load(Ordering::Relaxed), own_ran.get()))
        });
        let expected = if lacks == 0 { (true, HELPERS, true) } else { (false, 0, false) };
        assert_eq!(ended.recv_timeout(PATIENCE).expect("it has ended"), expected, "without the {lacks}th");
    }
}
