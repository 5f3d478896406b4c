//! Receives request bodies, with bounds on size, time and memory.

use std::fmt::Display;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::StatusCode;
use hyper::body::{Body, Incoming};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::{Instant, timeout, timeout_at};

use super::problem::Problem;

/// Reads a body of at most `max` bytes within the time limit. A body that arrives in one frame, as is usual, is not
/// copied.
pub(super) async fn read_body(body: Incoming, max: usize, time_limit: Duration) -> Result<Bytes, Problem> {
    read_body_with_permits(body, max, time_limit, None).await.map(|(body, _)| body)
}

/// Same as [`read_body`], but if `kilobytes` is given, acquires one of its permits for each received kilobyte. If the
/// time limit passes while the server waits for the client, returns a 408. If the time limit passes while the server
/// waits for permits, returns a 503.
pub(super) async fn read_body_with_permits<B: Body<Data = Bytes, Error: Display> + Unpin>(
    mut body: B,
    max: usize,
    time_limit: Duration,
    kilobytes: Option<&Semaphore>,
) -> Result<(Bytes, Option<SemaphorePermit<'_>>), Problem> {
    let too_large = || {
        let detail = format!("the body is too large (maximum {max} bytes); send it in parts");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "Body too large", detail)
    };
    if body.size_hint().lower() > max as u64 {
        return Err(too_large());
    }
    let too_slow = |_| {
        let detail = format!("the body did not arrive within {} s", time_limit.as_secs());
        Problem::new(StatusCode::REQUEST_TIMEOUT, "Body too slow", detail)
    };
    let deadline = Instant::now() + time_limit;
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    let mut held: Option<SemaphorePermit<'_>> = None;
    while let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(too_slow)? {
        let frame = frame.map_err(|error| Problem::bad_request(format!("the body is incomplete: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > max {
            return Err(too_large());
        }
        if let Some(kilobytes) = kilobytes {
            let more = (first.len() + rest.len() + data.len()).div_ceil(1024)
                - held.as_ref().map_or(0, SemaphorePermit::num_permits);
            let Ok(Ok(more)) = timeout_at(deadline, kilobytes.acquire_many(more as u32)).await else {
                return Err(busy_problem());
            };
            match &mut held {
                Some(held) => held.merge(more),
                None => held = Some(more),
            }
        }
        if first.is_empty() {
            first = data;
        } else {
            rest.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    let body = if rest.is_empty() { first } else { [&first[..], &rest[..]].concat().into() };
    Ok((body, held))
}

/// Reads and discards a body, up to about `max` bytes and within the time limit. Used before a refusal is sent, because
/// browsers read a response only after they have sent the whole body.
pub(super) async fn discard_body(mut body: Incoming, max: usize, time_limit: Duration) {
    let all = async {
        let mut length = 0;
        while let Some(Ok(frame)) = body.frame().await
            && length <= max
        {
            length += frame.data_ref().map_or(0, Bytes::len);
        }
    };
    // If the client exceeds the time limit, the rest of the body is not read.
    let _ = timeout(time_limit, all).await;
}

/// Returns the error for a rule file that did not get a permit in time.
pub(super) fn busy_problem() -> Problem {
    let detail = "too many rule files are being received or processed; try again later";
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Busy", detail)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::Full;
    use hyper::header::RETRY_AFTER;

    const TIME_LIMIT: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn body_that_gets_no_memory_permits_in_time_is_refused_with_503() {
        let permits = Semaphore::new(3);
        let file = || Full::new(Bytes::from_static(&[b'x'; 2048]));
        let (body, held) =
            read_body_with_permits(file(), 4096, TIME_LIMIT, Some(&permits)).await.expect("permits are free");
        assert_eq!((body.len(), held.as_ref().map(SemaphorePermit::num_permits)), (2048, Some(2)));
        let start = Instant::now();
        let problem =
            read_body_with_permits(file(), 4096, TIME_LIMIT, Some(&permits)).await.expect_err("no permits are left");
        assert_eq!((problem, start.elapsed().as_secs()), (busy_problem(), 60));
        let response = busy_problem().to_response();
        assert_eq!((response.status().as_u16(), response.headers()[RETRY_AFTER].as_bytes()), (503, &b"1"[..]));
        drop(held);
        assert!(read_body_with_permits(file(), 4096, TIME_LIMIT, Some(&permits)).await.is_ok());
    }
}
