use super::*;

fn sample(at_ms: u64) -> api::LagSample {
    api::LagSample { at_ms, lag_ms: Some(at_ms), lag_bytes: None }
}

#[test]
fn one_sample_a_minute_is_kept_for_two_days() {
    let mut lags = Lags::default();
    for second in 0..120 {
        lags.note(Duration::from_secs(second), || sample(second));
    }
    let at: Vec<u64> = lags.samples.iter().map(|sample| sample.at_ms).collect();
    assert_eq!(at, [0, 60]);
    for minute in 2..3000 {
        lags.note(Duration::from_secs(minute * 60), || sample(minute));
    }
    assert_eq!(lags.samples.len(), SAMPLES_MAX);
    assert_eq!(lags.samples.back().map(|sample| sample.at_ms), Some(2999));
}
