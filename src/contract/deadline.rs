//! Deadlines: until when a follow-up can be made (standards 5.4).
//!
//! A time is RFC 3339 text with a zone, or a number of milliseconds or seconds since 1970. Anything
//! else, a local time or a bare date included, names no time: a wrong deadline is worse than none.

use super::decimal::Decimal;
use super::json::{Kind, Value};
use super::operation::TimeUnit;

/// The latest deadline, in milliseconds since 1970: the last millisecond of the year 9999.
pub const MAX_DEADLINE_MS: i64 = 253_402_300_799_999;

/// Whether a follow-up can no longer be made; at the deadline itself it cannot.
pub fn is_passed(deadline_ms: Option<i64>, now_ms: i64) -> bool {
    deadline_ms.is_some_and(|deadline_ms| now_ms >= deadline_ms)
}

/// A time in milliseconds since 1970, as a deadline's `at` names it (standards 5.4).
///
/// Fractions of a millisecond are cut off. `None` for anything that is no time in this unit, for
/// times before 1970, and for those after [`MAX_DEADLINE_MS`].
pub fn time_ms(value: Value<'_>, unit: TimeUnit) -> Option<i64> {
    let number = |shift| Decimal::of(value.as_number()?).whole_part(shift, MAX_DEADLINE_MS);
    match (unit, value.kind()) {
        (TimeUnit::Either | TimeUnit::Milliseconds, Kind::Number) => number(0),
        (TimeUnit::Seconds, Kind::Number) => number(3),
        (TimeUnit::Either | TimeUnit::Iso8601, Kind::String) => rfc3339_ms(&value.as_str()?),
        (
            TimeUnit::Either | TimeUnit::Iso8601 | TimeUnit::Milliseconds | TimeUnit::Seconds,
            Kind::Array | Kind::Bool | Kind::Null | Kind::Number | Kind::Object | Kind::String,
        ) => None,
    }
}

/// Reads an RFC 3339 date-time with a zone: no local times, no bare dates, no other separator than
/// `T`. The 60th second of a leap second is the next minute's first.
fn rfc3339_ms(text: &str) -> Option<i64> {
    let mut reader = Digits { bytes: text.as_bytes() };
    let year = reader.number(4)?;
    reader.one_of(b"-")?;
    let month = reader.number(2)?;
    reader.one_of(b"-")?;
    let day = reader.number(2)?;
    reader.one_of(b"Tt")?;
    let hour = reader.number(2)?;
    reader.one_of(b":")?;
    let minute = reader.number(2)?;
    reader.one_of(b":")?;
    let second = reader.number(2)?;
    let millisecond = if reader.one_of(b".").is_some() { reader.fraction_ms()? } else { 0 };
    let zone_minutes = match reader.one_of(b"Zz+-")? {
        sign @ (b'+' | b'-') => {
            let hours = reader.number(2)?;
            reader.one_of(b":")?;
            let minutes = reader.number(2)?;
            if hours > 23 || minutes > 59 {
                return None;
            }
            let offset = hours.saturating_mul(60).saturating_add(minutes);
            if sign == b'-' { offset.saturating_neg() } else { offset }
        }
        _ => 0,
    };
    if !reader.bytes.is_empty() || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let narrow = |number: i64| i8::try_from(number).ok();
    let date = jiff::civil::Date::new(i16::try_from(year).ok()?, narrow(month)?, narrow(day)?);
    // Not through jiff's timestamps, which end a day before the last of these deadlines.
    let days = jiff::civil::date(1970, 1, 1).until(date.ok()?).ok()?.get_days();
    let midnight = i64::from(days).saturating_mul(86_400);
    let minutes = hour.saturating_mul(60).saturating_add(minute).saturating_sub(zone_minutes);
    let seconds = midnight.saturating_add(minutes.saturating_mul(60)).saturating_add(second);
    let ms = seconds.saturating_mul(1000).saturating_add(millisecond);
    (0..=MAX_DEADLINE_MS).contains(&ms).then_some(ms)
}

struct Digits<'t> {
    bytes: &'t [u8],
}

impl Digits<'_> {
    /// Exactly so many digits.
    fn number(&mut self, count: usize) -> Option<i64> {
        let (digits, rest) = self.bytes.split_at_checked(count)?;
        self.bytes = rest;
        if !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok()
    }

    /// One of these bytes.
    fn one_of(&mut self, wanted: &[u8]) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        if !wanted.contains(first) {
            return None;
        }
        self.bytes = rest;
        Some(*first)
    }

    /// One or more digits after the point, as whole milliseconds.
    fn fraction_ms(&mut self) -> Option<i64> {
        let mut ms = 0_i64;
        let mut count = 0_usize;
        while let Some(digit) = self.one_of(b"0123456789") {
            if count < 3 {
                ms = ms.saturating_mul(10).saturating_add(i64::from(digit.wrapping_sub(b'0')));
            }
            count = count.saturating_add(1);
        }
        match count {
            0 => None,
            1 => Some(ms.saturating_mul(100)),
            2 => Some(ms.saturating_mul(10)),
            _ => Some(ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::json::Doc;
    use super::*;

    fn read(json: &str, unit: TimeUnit) -> Option<i64> {
        time_ms(Doc::parse(json.to_owned()).unwrap().root(), unit)
    }

    #[test]
    fn every_vector_of_a_named_time_holds() {
        let vectors = Doc::parse(include_str!("../../tests/vectors/deadlines.json")).unwrap();
        let mut counts = (0, 0);
        for case in vectors.root().get("cases").unwrap().elements() {
            let Some(value) = case.get("at_value") else {
                continue;
            };
            let expected = case.get("deadline_ms").and_then(Value::as_i64);
            assert_eq!(time_ms(value, TimeUnit::Either), expected, "{}", value.raw());
            match expected {
                Some(_) => counts.0 += 1,
                None => counts.1 += 1,
            }
        }
        assert_eq!(counts, (7, 8), "times, refusals");
    }

    #[test]
    fn units_take_only_their_own_form() {
        let iso = "\"2026-12-01T00:00:00Z\"";
        let cases = [
            (iso, TimeUnit::Either, Some(1_796_083_200_000)),
            (iso, TimeUnit::Iso8601, Some(1_796_083_200_000)),
            (iso, TimeUnit::Milliseconds, None),
            (iso, TimeUnit::Seconds, None),
            ("1796083200", TimeUnit::Seconds, Some(1_796_083_200_000)),
            ("1796083200.5", TimeUnit::Seconds, Some(1_796_083_200_500)),
            ("1796083200", TimeUnit::Iso8601, None),
            ("1.7960832e12", TimeUnit::Milliseconds, Some(1_796_083_200_000)),
            ("253402300799999", TimeUnit::Milliseconds, Some(MAX_DEADLINE_MS)),
            ("253402300799999.9", TimeUnit::Milliseconds, Some(MAX_DEADLINE_MS)),
            ("253402300800000", TimeUnit::Milliseconds, None),
            ("253402300800", TimeUnit::Seconds, None),
            ("\"1796083200\"", TimeUnit::Seconds, None),
        ];
        for (json, unit, expected) in cases {
            assert_eq!(read(json, unit), expected, "{json} as {unit:?}");
        }
    }

    #[test]
    fn times_without_exactly_the_rfc_3339_form_are_refused() {
        let cases = [
            ("2026-12-01T00:00:00+00:00", true),
            ("2026-12-01T00:00:00-23:59", true),
            ("2024-02-29T12:00:00Z", true),
            ("1970-01-01T00:00:00Z", true),
            ("9999-12-31T23:59:59.999999Z", true),
            ("1969-12-31T23:59:59Z", false),
            ("9999-12-31T23:59:60Z", false),
            ("2026-12-01T00:00:00", false),
            ("2026-12-01 00:00:00Z", false),
            ("2026-12-01T00:00Z", false),
            ("2026-12-01T00:00:00.Z", false),
            ("2026-12-01T00:00:00,5Z", false),
            ("2026-12-01T00:00:00+0100", false),
            ("2026-12-01T00:00:00+24:00", false),
            ("2026-12-01T00:00:00+01:60", false),
            ("2026-12-01T24:00:00Z", false),
            ("2026-12-01T00:60:00Z", false),
            ("2026-12-01T00:00:61Z", false),
            ("2026-02-29T00:00:00Z", false),
            ("2026-13-01T00:00:00Z", false),
            ("2026-00-01T00:00:00Z", false),
            ("2026-12-01T00:00:00Z ", false),
            ("2026-12-01T00:00:00Z[UTC]", false),
            ("+2026-12-01T00:00:00Z", false),
            ("2026-12-+1T00:00:00Z", false),
            ("2026", false),
            ("", false),
        ];
        for (text, is_time) in cases {
            assert_eq!(rfc3339_ms(text).is_some(), is_time, "{text}");
        }
    }

    #[test]
    fn a_deadline_has_passed_at_its_own_millisecond() {
        assert!(!is_passed(Some(1_000), 999));
        assert!(is_passed(Some(1_000), 1_000));
        assert!(is_passed(Some(1_000), 1_001));
        assert!(!is_passed(None, i64::MAX));
    }

    proptest! {
        #[test]
        fn times_agree_with_another_reader(
            ms in 0..=MAX_DEADLINE_MS - 2 * 86_400_000, offset_minutes in -1_439_i32..=1_439,
        ) {
            let offset = jiff::tz::Offset::from_seconds(offset_minutes * 60).unwrap();
            let timestamp = jiff::Timestamp::from_millisecond(ms).unwrap();
            let text = timestamp.display_with_offset(offset).to_string();
            // A zone can carry the local year past the four digits of RFC 3339.
            prop_assume!(text.starts_with(|first: char| first.is_ascii_digit()));

            prop_assert_eq!(rfc3339_ms(&text), Some(ms), "{}", text);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9TZ:.+-]{0,30}") {
            if let Some(ms) = rfc3339_ms(&text) {
                prop_assert!((0..=MAX_DEADLINE_MS).contains(&ms));
            }
        }
    }
}
