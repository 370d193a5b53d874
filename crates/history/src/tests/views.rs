//! What is shown of an instant stays what it was: over cuts and openings, whatever the clock is set to.

use cairn_device::Fate;

use super::*;

const B: usize = 4096;

#[test]
fn instant_that_is_shown_is_the_same_after_a_cut_though_nobody_has_flushed() {
    for placement in Placement::ALL {
        let origin = Arc::new(FaultDevice::new(8 * B as u64));
        let store = Arc::new(FaultDevice::new(4 * MIB));
        let (options, open) =
            (options(placement, Granularity::EveryWrite, 4096), open_options(&clock(), 64 << 10));
        let history =
            History::create(origin.clone(), store.clone(), &options, open.clone()).expect("a history");
        let write = |byte, blocks| {
            history.write(0, Segments::copy_of(&vec![byte; blocks * B])).expect("a write");
            history.status().last
        };
        write(1, 8);
        history.flush().expect("a flush");
        let view = history.view(write(2, 4)).expect("a view");
        let (instant, shown) = (view.instant(), bytes(&view, 0, 8 * B).expect("a read"));
        assert!(shown[..4 * B] == vec![2; 4 * B] && shown[4 * B..] == vec![1; 4 * B], "{placement:?}");
        drop(view);
        // What was not flushed may go. What a clone stands on may not: what was written to that is durable by its own flushes.
        let cut = |device: &FaultDevice| Arc::new(device.power_cycle_as(Fate::Lost, &mut Rng::new(1)));
        let again = History::open(cut(&origin), cut(&store), open).expect("it opens");
        let view = again.view(instant).expect("a view");
        assert_eq!(view.instant(), instant, "{placement:?}");
        assert!(bytes(&view, 0, 8 * B).expect("a read") == shown, "{placement:?}");
    }
}
