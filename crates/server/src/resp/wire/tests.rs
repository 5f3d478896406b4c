use proptest::prelude::*;

use super::*;

/// Returns all complete commands in `input`, and the result of parsing the remaining bytes.
fn parse_commands(input: &[u8]) -> (Vec<Vec<Vec<u8>>>, Result<RespFrame, ProtocolError>) {
    let (mut commands, mut args, mut at) = (Vec::new(), Vec::new(), 0);
    loop {
        match parse_command(&input[at..], &mut args) {
            Ok(RespFrame::Command(len)) => {
                commands.push(args.iter().map(|arg| arg.to_vec()).collect());
                at += len;
            }
            rest => return (commands, rest),
        }
    }
}

fn assert_commands(input: &[u8], expected: &[&[&str]], rest: Result<RespFrame, ProtocolError>) {
    let (commands, outcome) = parse_commands(input);
    let commands: Vec<Vec<&str>> =
        commands.iter().map(|args| args.iter().map(|arg| std::str::from_utf8(arg).expect("text")).collect()).collect();
    assert_eq!(
        (commands, outcome),
        (expected.iter().map(|args| args.to_vec()).collect(), rest),
        "{}",
        input.escape_ascii()
    );
}

#[test]
fn commands_are_arrays_or_lines() {
    let end = Ok(RespFrame::Incomplete(1));
    assert_commands(b"*1\r\n$4\r\nPING\r\n", &[&["PING"]], end);
    assert_commands(b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &[&["ECHO", ""]], end);
    assert_commands(b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nQUIT\r\n", &[&["PING"], &["QUIT"]], end);
    assert_commands(b"PING\r\nECHO  a \n", &[&["PING"], &["ECHO", "a"]], end);
    assert_commands(b"\r\n*0\r\n*-1\r\nPING\r\n", &[&[], &[], &[], &["PING"]], end);
}

#[test]
fn incomplete_input_needs_more_bytes() {
    assert_commands(b"*2", &[], Ok(RespFrame::Incomplete(3)));
    assert_commands(b"*2\r\n", &[], Ok(RespFrame::Incomplete(5)));
    assert_commands(b"*2\r\n$3\r\nfoo\r\n$1000\r\n", &[], Ok(RespFrame::Incomplete(20 + 1_002)));
    assert_commands(b"PI", &[], Ok(RespFrame::Incomplete(3)));
}

#[test]
fn invalid_input_is_refused_immediately() {
    for (input, error) in [
        (&b"*x\r\n"[..], ProtocolError::ArrayLength),
        (b"*1025\r\n", ProtocolError::ArrayLength),
        (b"*99999999999999999999\r\n", ProtocolError::ArrayLength),
        (b"*000000000000000000000", ProtocolError::ArrayLength),
        (b"*\r\n", ProtocolError::ArrayLength),
        (b"*1\rx", ProtocolError::ArrayLength),
        (b"*1\r\n:1\r\n", ProtocolError::ExpectedBulk(b':')),
        (b"*1\r\n$-1\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$65537\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$a\r\n", ProtocolError::BulkLength),
        (b"*1\r\n$1\r\nabc", ProtocolError::MissingLineEnd),
        (b"SET k \"a b\"\r\n", ProtocolError::Quotes),
    ] {
        assert_commands(input, &[], Err(error));
    }
}

#[test]
fn input_at_a_bound_is_accepted_and_above_it_refused() {
    let command = |count: usize, len: usize| {
        let mut bytes = format!("*{count}\r\n").into_bytes();
        for _ in 0..count {
            bytes.extend_from_slice(format!("${len}\r\n").as_bytes());
            bytes.extend(std::iter::repeat_n(b'a', len));
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    };
    let outcome = |bytes: &[u8]| parse_command(bytes, &mut Vec::new());
    let len = command(MAX_ARGS, 1).len();
    assert_eq!(outcome(&command(MAX_ARGS, 1)), Ok(RespFrame::Command(len)));
    assert_eq!(outcome(&command(1, MAX_BULK_BYTES)), Ok(RespFrame::Command(MAX_BULK_BYTES + 14)));
    assert_eq!(outcome(&command(2, MAX_BULK_BYTES)), Err(ProtocolError::CommandTooLong));
    // The last argument is short, so the fast path parses it.
    let of_size = |size: usize| {
        let arg = |len: usize| format!("${len}\r\n{}\r\n", "a".repeat(len));
        let head = format!("*3\r\n{}", arg(MAX_BULK_BYTES));
        let used = head.len() + arg(1).len() + "$00000\r\n\r\n".len();
        let filler = size - used;
        assert_eq!(filler.to_string().len(), 5);
        format!("{head}{}{}", arg(filler), arg(1)).into_bytes()
    };
    assert_eq!(outcome(&of_size(MAX_COMMAND_BYTES)), Ok(RespFrame::Command(MAX_COMMAND_BYTES)));
    assert_eq!(outcome(&of_size(MAX_COMMAND_BYTES + 1)), Err(ProtocolError::CommandTooLong));
    assert_eq!(outcome(&vec![b'a'; MAX_COMMAND_BYTES]), Ok(RespFrame::Incomplete(MAX_COMMAND_BYTES + 1)));
    assert_eq!(outcome(&vec![b'a'; MAX_COMMAND_BYTES + 1]), Err(ProtocolError::CommandTooLong));
    let inline = |length| [b"ECHO ", &*vec![b'a'; length], b"\n"].concat();
    assert!(outcome(&inline(MAX_BULK_BYTES)).is_ok());
    assert_eq!(outcome(&inline(MAX_BULK_BYTES + 1)), Err(ProtocolError::BulkLength));
    let words = |count| [b"a ".repeat(count), b"\r\n".to_vec()].concat();
    assert!(matches!(outcome(&words(MAX_ARGS)), Ok(RespFrame::Command(_))));
    assert_eq!(outcome(&words(MAX_ARGS + 1)), Err(ProtocolError::ArrayLength));
}

#[test]
fn integers_are_parsed_like_in_redis_cell() {
    for (text, value) in [
        ("0", Some(0)),
        ("-7", Some(-7)),
        ("+1", Some(1)),
        ("9223372036854775807", Some(i64::MAX)),
        ("-9223372036854775808", Some(i64::MIN)),
        ("9223372036854775808", None),
        ("", None),
        ("-", None),
        (" 1", None),
        ("1.5", None),
        ("1e3", None),
    ] {
        assert_eq!(parse_integer(text.as_bytes()), value, "{text:?}");
        assert_eq!(text.parse::<i64>().ok(), value, "{text:?}");
    }
}

#[test]
fn replies_differ_between_versions_only_in_maps_and_null() {
    let written = |version| {
        let mut replies = Replies::new(Vec::new(), version);
        replies.begin_map(1);
        replies.write_bulk("k");
        replies.write_null();
        replies.write_throttle_reply([0, 16, 15, -1, i64::MIN]);
        replies.write_error_reply("ERR a\r\nb");
        String::from_utf8(replies.bytes).expect("text")
    };
    let same = "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:-9223372036854775808\r\n-ERR a  b\r\n";
    assert_eq!(written(RespVersion::Two), format!("*2\r\n$1\r\nk\r\n$-1\r\n{same}"));
    assert_eq!(written(RespVersion::Three), format!("%1\r\n$1\r\nk\r\n_\r\n{same}"));
}

#[test]
fn numbers_of_every_length_are_encoded() {
    let around = (0..19).flat_map(|power| (-11..=11).map(move |offset| 10_i64.pow(power) + offset));
    let halves = (0..=10_000).map(|number| number * 10_001 % 100_000_000);
    let numbers =
        around.chain(halves).chain([0, i64::MAX, i64::MIN]).flat_map(|number| [number, number.wrapping_neg()]);
    for number in numbers {
        let mut replies = Replies::default();
        replies.write_integer(number);
        assert_eq!(String::from_utf8(replies.bytes).expect("text"), format!(":{number}\r\n"));
    }
}

/// Generates random bytes that often resemble requests, so that they reach all branches of the parser.
fn request_like_bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        Just(b"*".to_vec()),
        Just(b"$".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"-".to_vec()),
        (0..40_u32).prop_map(|number| number.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..8),
        prop::collection::vec(prop::collection::vec(any::<u8>(), 0..12), 0..5).prop_map(|args| encode_command(&args)),
    ];
    prop::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

fn encode_command(args: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        bytes.extend_from_slice(arg);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

proptest! {
    #[test]
    fn digits_are_parsed_like_in_the_standard_library(text in "[0-9]{1,18}|[0-9a:/]{1,9}|[+-]?[0-9]{4,8}") {
        prop_assert_eq!(parse_integer(text.as_bytes()), text.parse().ok());
    }

    #[test]
    fn throttle_replies_are_five_integers(
        replies in prop::collection::vec((0..2_i64, prop_oneof![0..3_i64, 99_999_999..100_000_002_i64, any::<i64>()], any::<i64>(), -1..100_i64, 0..100_000_i64), 1..9)
    ) {
        let mut written = Replies::default();
        let mut expected = String::new();
        for (limited, limit, remaining, retry, reset) in replies {
            written.write_throttle_reply([limited, limit, remaining, retry, reset]);
            expected += &format!("*5\r\n:{limited}\r\n:{limit}\r\n:{remaining}\r\n:{retry}\r\n:{reset}\r\n");
        }
        prop_assert_eq!(String::from_utf8(written.bytes), Ok(expected));
    }

    #[test]
    fn digits_are_split_like_in_the_standard_library(value in 0..100_000_000_u32) {
        let digits = split_digits(value).to_le_bytes().map(|digit| char::from(b'0' + digit));
        prop_assert_eq!(String::from_iter(digits), format!("{value:08}"));
    }

    #[test]
    fn parser_never_panics_and_never_reads_beyond_its_input(input in request_like_bytes()) {
        let (commands, rest) = parse_commands(&input);
        prop_assert!(commands.iter().flatten().map(Vec::len).sum::<usize>() <= input.len());
        if let Ok(RespFrame::Incomplete(needed)) = rest {
            prop_assert!(needed > 0);
        }
    }

    #[test]
    fn commands_do_not_depend_on_how_the_input_is_split(input in request_like_bytes(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(input.len() + 1);
        let whole = parse_commands(&input);
        // Parse like the server: in order, and again from the start of a partial command when more bytes have arrived.
        let (mut all, mut args, mut at) = (Vec::new(), Vec::new(), 0);
        let mut needed = 0;
        for end in [cut, input.len()] {
            if end - at < needed {
                continue;
            }
            loop {
                match parse_command(&input[at..end], &mut args) {
                    Ok(RespFrame::Command(len)) => {
                        all.push(args.iter().map(|arg| arg.to_vec()).collect::<Vec<_>>());
                        at += len;
                    }
                    Ok(RespFrame::Incomplete(bytes)) => {
                        prop_assert!(bytes > end - at);
                        needed = bytes;
                        break;
                    }
                    Err(_) => {
                        prop_assert!(whole.1.is_err());
                        return Ok(());
                    }
                }
            }
        }
        prop_assert_eq!(all, whole.0);
    }

    #[test]
    fn encoded_commands_are_parsed_back(requests in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6), 0..6)) {
        let bytes: Vec<u8> = requests.iter().flat_map(|args| encode_command(args)).collect();
        prop_assert_eq!(parse_commands(&bytes), (requests, Ok(RespFrame::Incomplete(1))));
    }
}
