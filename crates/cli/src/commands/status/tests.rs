//! Tests of what people are shown.

use cairn_api::Rate;

use super::{latencies, latency};

#[test]
fn latencies_have_the_unit_that_people_read() {
    let texts = [0.3, 7.25, 10.0, 999.0, 1500.0, 123_456.0, 2_500_000.0].map(latency);
    assert_eq!(texts, ["0.3 us", "7.2 us", "10 us", "999 us", "1.5 ms", "123 ms", "2.5 s"]);
    let rate = Rate { per_second: 2.0, bytes_per_second: 8192, p50_us: Some(8.0), p99_us: Some(1200.0) };
    assert_eq!(latencies(&rate), "8.0 us, 1.2 ms");
    assert_eq!(latencies(&Rate { p50_us: None, p99_us: None, ..rate }), "-");
}
