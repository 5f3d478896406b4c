use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Nanos, Outcome, Report, Retry, Stamp, Stamps};

use super::*;
use crate::ask::{AskCharge, ChargeAnswer, ChargeAnswers, SingleAsk, UndecidedReason};
use crate::homes::Hop;
use crate::table::{NetCharge, SnapshotKey, UsedAmount, Verb};

fn key() -> impl Strategy<Value = Fingerprint> {
    (any::<u64>(), any::<u32>()).prop_map(|(low, high)| Fingerprint::from_parts(low, high))
}

fn bytes(max: usize) -> impl Strategy<Value = Arc<[u8]>> {
    vec(any::<u8>(), 0..max).prop_map(Into::into)
}

fn state() -> impl Strategy<Value = MemberState> {
    prop_oneof![Just(MemberState::Joining), Just(MemberState::Ready), Just(MemberState::Leaving)]
}

fn stamps() -> impl Strategy<Value = Stamps> {
    prop_oneof![
        vec(any::<u64>(), 1..=8).prop_map(|each| Stamps::from_stamps(each.into_iter().map(Stamp::from_bits))),
        (0usize..8, 1usize..=8).prop_map(|(place, count)| Stamps::of_refusal_by(place).with_count(count)),
    ]
}

fn retry() -> impl Strategy<Value = Retry> {
    prop_oneof![
        any::<u64>().prop_map(|nanos| Retry::After(Nanos::from_nanos(nanos))),
        Just(Retry::OnRelease),
        Just(Retry::Never)
    ]
}

fn ask() -> impl Strategy<Value = Ask> {
    let amount = (0..3, any::<u64>()).prop_map(|(kind, cost)| match kind {
        0 => Amount::Exactly(Cost::new(cost)),
        1 => Amount::UpTo(Cost::new(cost)),
        _ => Amount::Regardless(Cost::new(cost)),
    });
    let charge = (key(), bytes(60), amount, option::of(stamps()));
    let charge =
        charge.prop_map(|(key, limits, amount, stamps)| AskCharge { key, limits: limits[..].into(), amount, stamps });
    let verb = [Verb::Check, Verb::Peek, Verb::Hold, Verb::Undo, Verb::Refund, Verb::Reset];
    let verb = proptest::sample::select(verb.to_vec());
    (any::<u64>(), any::<bool>(), verb, vec(charge, 0..9)).prop_map(|(id, last, verb, charges)| {
        let hop = if last { Hop::Last } else { Hop::FromOrigin };
        Ask { id, hop, verb, charges }
    })
}

fn answer() -> impl Strategy<Value = Answer> {
    let outcome = prop_oneof![
        Just(Outcome::Allow),
        any::<u64>().prop_map(|nanos| Outcome::Delay(Nanos::from_nanos(nanos))),
        retry().prop_map(Outcome::Deny)
    ];
    let report = (any::<u64>(), any::<u64>(), retry(), any::<u64>());
    let report = report.prop_map(|(limit, remaining, retry, reset)| Report {
        limit,
        remaining,
        retry,
        reset: Nanos::from_nanos(reset),
    });
    let charge = (outcome, any::<u64>(), stamps(), vec(report, 0..=8));
    let charge = charge.prop_map(|(outcome, taken, stamps, reports)| ChargeAnswer {
        outcome,
        taken: Cost::new(taken),
        stamps,
        reports: reports.into(),
    });
    let refusal =
        prop_oneof![Just(UndecidedReason::Minority), Just(UndecidedReason::NoHome), Just(UndecidedReason::BadLimits)];
    let result =
        prop_oneof![vec(charge, 0..9).prop_map(|charges| Ok(ChargeAnswers::from(charges))), refusal.prop_map(Err)];
    (any::<u64>(), result).prop_map(|(id, result)| Answer { id, result })
}

fn frame() -> impl Strategy<Value = Frame> {
    let hello = (any::<u16>(), any::<u64>(), any::<u64>(), state(), option::of(0..u64::MAX - 1));
    let part = (any::<u32>(), any::<u32>(), vec((any::<u64>(), any::<u64>()), 0..20), bytes(100));
    prop_oneof![
        hello.prop_map(|(version, cluster, node, state, resume)| {
            Frame::Hello(Hello { version, cluster, node: NodeId(node), state, resume })
        }),
        any::<u64>().prop_map(|from| Frame::Resume { from }),
        (any::<u64>(), any::<bool>()).prop_map(|(head, gap)| Frame::Head { head, gap }),
        (any::<u32>(), bytes(100)).prop_map(|(number, code)| Frame::Params { number, encoded: code[..].into() }),
        (any::<u64>(), any::<u64>(), bytes(100)).prop_map(|(seq, age, body)| Frame::Delta(Delta { seq, age, body })),
        (any::<u64>(), state()).prop_map(|(seq, state)| Frame::Ack { seq, state }),
        any::<u32>().prop_map(|part| Frame::Want { part }),
        part.prop_map(|(part, parts, vector, body)| {
            let vector = vector.into_iter().map(|(node, seq)| (NodeId(node), seq)).collect();
            Frame::Part(SnapshotPart { part, parts, vector, body })
        }),
        ask().prop_map(Frame::Ask),
        answer().prop_map(Frame::Answer),
    ]
}

proptest! {
    #[test]
    fn frames_round_trip_and_prefixes_are_incomplete(frame in frame(), rest in vec(any::<u8>(), 0..5)) {
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        let length = bytes.len();
        for cut in 0..length {
            prop_assert_eq!(decode(&bytes[..cut]), Ok(None));
        }
        bytes.extend(rest);
        prop_assert_eq!(decode(&bytes), Ok(Some((frame, length))));
    }

    #[test]
    fn corrupt_frames_are_decoded_or_refused(frame in frame(), place in any::<usize>(), byte in any::<u8>()) {
        let mut bytes = Vec::new();
        encode(&frame, &mut bytes);
        let place = 4 + place % (bytes.len() - 4);
        bytes[place] = byte;
        let decoded = decode(&bytes);
        if let Some(single) = decode_single_ask(&bytes) {
            let Ok(Some((Frame::Ask(ask), _))) = &decoded else { panic!("only the fast path accepts {bytes:?}") };
            let SingleAsk { id, hop, verb, key, limits, amount, stamps } = single;
            let charges = vec![AskCharge { key, limits: limits.into(), amount, stamps }];
            prop_assert_eq!(ask, &Ask { id, hop, verb, charges });
        } else if let Ok(Some((Frame::Ask(ask), _))) = &decoded {
            prop_assert_ne!(ask.charges.len(), 1, "the fast path applies to one charge");
        }
        let answer = match decoded {
            Ok(Some((Frame::Answer(answer), _))) => Some(answer),
            _ => None,
        };
        prop_assert_eq!(decode_answer(&bytes), answer);
        // A truncated frame does not cause a panic either.
        let shorter = (bytes.len() as u32 - 5).to_le_bytes();
        bytes[..4].copy_from_slice(&shorter);
        let _ = decode(&bytes);
    }

    #[test]
    fn bodies_round_trip(
        items in vec((any::<u32>(), vec((key(), any::<i64>()), 0..9)), 0..5),
        resets in vec((key(), any::<u32>()), 0..5),
        known in vec((any::<u32>(), vec((key(), any::<u32>(), vec((any::<u64>(), any::<u32>()), 0..8)), 0..9)), 0..5),
    ) {
        let item = |(key, cost)| NetCharge { key, cost };
        let blocks = items.into_iter().map(|(number, items)| (number, items.into_iter().map(item).collect())).collect();
        let (body, mut bytes) = (DeltaBody { blocks, resets }, Vec::new());
        body.encode(&mut bytes);
        prop_assert_eq!(DeltaBody::decode(&bytes), Ok(body));
        prop_assert!(bytes.is_empty() || DeltaBody::decode(&bytes[..bytes.len() - 1]).is_err());
        let used = |(whole, part)| UsedAmount { whole, part };
        let one = |(key, generation, each): (_, _, Vec<(u64, u32)>)| {
            SnapshotKey { key, generation, used: each.into_iter().map(used).collect() }
        };
        let blocks = known.into_iter().map(|(number, known)| (number, known.into_iter().map(one).collect())).collect();
        let (body, mut bytes) = (PartBody { blocks }, Vec::new());
        body.encode(&mut bytes);
        prop_assert_eq!(PartBody::decode(&bytes), Ok(body));
    }
}

#[test]
fn huge_lengths_are_refused_before_allocation() {
    let mut long = (MAX_FRAME_BYTES as u32 + 1).to_le_bytes().to_vec();
    assert_eq!(decode(&long), Err(WireError::TooLong(MAX_FRAME_BYTES + 1)));
    long[..4].copy_from_slice(&7u32.to_le_bytes());
    // A snapshot part of seven bytes that ends within the length of its vector.
    long.extend([8, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(decode(&long), Err(WireError::Truncated));
    assert_eq!(DeltaBody::decode(&[0xff, 0xff, 0xff, 0x7f]), Err(WireError::Truncated));
    assert_eq!(decode(&[1, 0, 0, 0, 99]), Err(WireError::UnknownKind(99)));
    assert_eq!(decode(&[0, 0, 0, 0]), Err(WireError::Truncated));
    assert_eq!(WireError::TooLong(9_999_999).to_string(), "frame too long: 9999999 bytes (maximum 1048576)");
}
