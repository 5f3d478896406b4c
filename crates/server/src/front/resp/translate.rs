//! Commands to calls, and decisions to replies.

use tollgate::redis_cell::Throttle;

use super::wire::integer;

/// How redis-cell begins every error.
const CELL_ERROR: &str = "Cell error: Store error:";

/// The numbers of `CL.THROTTLE`, after the key: burst, count, period and quantity.
///
/// # Errors
/// In the words of redis-cell.
#[inline]
pub fn throttle_numbers(args: &[&[u8]]) -> Result<[i64; 4], String> {
    let (texts, quantity) = match args {
        [_, _, texts @ .., quantity] if texts.len() == 3 => (texts, Some(quantity)),
        [_, _, texts @ ..] if texts.len() == 3 => (texts, None),
        _ => {
            let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
            return Err(format!("{CELL_ERROR} {usage}"));
        }
    };
    let mut numbers = [0, 0, 0, 1];
    for (number, text) in numbers.iter_mut().zip(texts.iter().chain(quantity)) {
        *number = integer(text).ok_or_else(|| not_an_integer(text))?;
    }
    Ok(numbers)
}

#[cold]
fn not_an_integer(text: &[u8]) -> String {
    format!("{CELL_ERROR} Couldn't parse as integer: {}", String::from_utf8_lossy(text))
}

/// The limit that these numbers are.
///
/// # Errors
/// In the words of redis-cell for a rate of zero, in ours for numbers that are too large.
pub fn throttle([max_burst, count, period, quantity]: [i64; 4]) -> Result<Throttle, String> {
    Throttle::new(max_burst, count, period, quantity).map_err(|error| format!("{CELL_ERROR} {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &str, expected: Result<[i64; 4], &str>) {
        let args: Vec<&[u8]> = args.split('|').map(str::as_bytes).collect();
        assert_eq!(throttle_numbers(&args), expected.map_err(|error| format!("Cell error: Store error: {error}")));
    }

    #[test]
    fn the_arguments_of_a_throttling_call_are_three_or_four_numbers_after_the_key() {
        let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        check("CL.THROTTLE|k|15|30|60", Ok([15, 30, 60, 1]));
        check("CL.THROTTLE|k|15|30|60|-7", Ok([15, 30, 60, -7]));
        check("CL.THROTTLE|k|+1|30|60", Ok([1, 30, 60, 1]));
        for wrong in ["CL.THROTTLE", "CL.THROTTLE|k", "CL.THROTTLE|k|1|1", "CL.THROTTLE|k|1|1|1|1|1"] {
            check(wrong, Err(usage));
        }
        check("CL.THROTTLE|k|x|1|1", Err("Couldn't parse as integer: x"));
        check("CL.THROTTLE|k|1|1|1|", Err("Couldn't parse as integer: "));
        check("CL.THROTTLE|k|1|9223372036854775808|1", Err("Couldn't parse as integer: 9223372036854775808"));
    }

    #[test]
    fn a_rate_of_zero_is_told_in_the_words_of_redis_cell() {
        assert_eq!(
            throttle([1, 0, 1, 1]).unwrap_err(),
            "Cell error: Store error: Zero rates are not supported".to_owned()
        );
        assert!(throttle([i64::MAX, 1, 1, 1]).unwrap_err().starts_with("Cell error: Store error: an amount of"));
    }
}
