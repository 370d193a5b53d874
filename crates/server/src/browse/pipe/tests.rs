use std::task::Waker;

use super::*;

fn next(reader: &mut Reader) -> Poll<Option<io::Result<Bytes>>> {
    Pin::new(reader).poll_next(&mut Context::from_waker(Waker::noop()))
}

fn piece(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn pieces_come_in_order_and_then_the_end() {
    let (writer, mut reader) = pipe();
    assert!(next(&mut reader).is_pending());
    writer.send(piece("one")).unwrap();
    writer.send(piece("two")).unwrap();
    writer.end(Ok(()));
    drop(writer);
    assert!(matches!(next(&mut reader), Poll::Ready(Some(Ok(bytes))) if bytes == "one"));
    assert!(matches!(next(&mut reader), Poll::Ready(Some(Ok(bytes))) if bytes == "two"));
    assert!(matches!(next(&mut reader), Poll::Ready(None)));
    assert!(matches!(next(&mut reader), Poll::Ready(None)));
}

#[test]
fn writer_that_is_dropped_early_cuts_the_answer() {
    let (writer, mut reader) = pipe();
    writer.send(piece("part")).unwrap();
    drop(writer);
    assert!(matches!(next(&mut reader), Poll::Ready(Some(Ok(_)))));
    assert!(matches!(next(&mut reader), Poll::Ready(Some(Err(_)))), "a part looks whole");
}

#[test]
fn full_pipe_waits_for_the_reader_and_ends_with_it() {
    let (writer, mut reader) = pipe();
    let thread = std::thread::spawn(move || {
        let sent = (0..PIECES_MAX + 1).try_for_each(|_| writer.send(piece("x")));
        (sent, writer.send(piece("y")).map_err(|error| error.kind()))
    });
    // One more than fits is sent only after one was taken.
    while !matches!(next(&mut reader), Poll::Ready(Some(Ok(_)))) {
        std::thread::yield_now();
    }
    drop(reader);
    let (sent, late) = thread.join().unwrap();
    assert!(sent.is_ok() || sent.is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe));
    assert_eq!(late, Err(io::ErrorKind::BrokenPipe));
}
