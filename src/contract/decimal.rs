//! Exact decimal values of JSON numbers, without arithmetic on what a hostile text could blow up.
//!
//! A number is its significant digits and the power of ten of the last one. `1`, `1.0` and `10e-1`
//! are one value; 2^53 and 2^53+1 are two, which 64-bit floats would make one. Nothing is
//! allocated, whatever the exponent is.
//!
//! Limit: exponents of more than 18 digits are compared as they are written, so two spellings of
//! such a number can count as different.

/// A JSON number's value.
#[derive(Clone, Copy)]
pub(super) struct Decimal<'a> {
    is_negative: bool,
    whole: &'a str,
    fraction: &'a str,
    leading: usize,
    /// How many significant digits there are; none is zero.
    count: usize,
    exponent: Exponent<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exponent<'a> {
    /// The power of ten of the last significant digit.
    Exact(i64),
    /// An exponent beyond 18 digits: its sign, its digits, and what the digits' place adds.
    Huge(bool, &'a str, i64),
}

impl<'a> Decimal<'a> {
    /// Takes a number's text, which must be a JSON number.
    pub(super) fn of(text: &'a str) -> Self {
        let (is_negative, text) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, power) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let zeros =
            |digits: &mut dyn Iterator<Item = u8>| digits.take_while(|b| *b == b'0').count();
        let length = whole.len().saturating_add(fraction.len());
        let leading = zeros(&mut whole.bytes().chain(fraction.bytes()));
        if leading == length {
            let exponent = Exponent::Exact(0);
            return Self { is_negative: false, whole, fraction, leading, count: 0, exponent };
        }
        let trailing = zeros(&mut fraction.bytes().rev().chain(whole.bytes().rev()));
        let count = length.saturating_sub(leading).saturating_sub(trailing);
        let place = to_i64(trailing).saturating_sub(to_i64(fraction.len()));
        let (is_down, power) = match power.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, power.strip_prefix('+').unwrap_or(power)),
        };
        let power = power.trim_start_matches('0');
        let exponent = match power.len() {
            0 => Exponent::Exact(place),
            1..=18 => {
                let size: i64 = power.parse().unwrap_or(0);
                let power = if is_down { size.saturating_neg() } else { size };
                Exponent::Exact(power.saturating_add(place))
            }
            _ => Exponent::Huge(is_down, power, place),
        };
        Self { is_negative, whole, fraction, leading, count, exponent }
    }

    /// The whole part of the value times 10 to the power of `shift`, towards zero, if it lies in
    /// `0..=max`. A value below zero has none, however small it is.
    pub(super) fn whole_part(self, shift: i64, max: i64) -> Option<i64> {
        if self.count == 0 {
            return Some(0);
        }
        let last = match self.exponent {
            Exponent::Exact(power) => power.saturating_add(shift),
            Exponent::Huge(true, ..) => i64::MIN,
            Exponent::Huge(false, ..) => i64::MAX,
        };
        if self.is_negative {
            return None;
        }
        // Digits before the decimal point; 18 of them fit, and more exceed any `max`.
        let wanted = last.saturating_add(to_i64(self.count));
        if wanted > 18 {
            return None;
        }
        let mut value: i64 = 0;
        let mut digits = self.digits();
        for _ in 0..wanted.max(0) {
            let digit = digits.next().map_or(0, |byte| i64::from(byte.wrapping_sub(b'0')));
            value = value.checked_mul(10)?.checked_add(digit)?;
        }
        (value <= max).then_some(value)
    }

    fn digits(self) -> impl Iterator<Item = u8> + 'a {
        let all = self.whole.bytes().chain(self.fraction.bytes());
        all.skip(self.leading).take(self.count)
    }
}

impl PartialEq for Decimal<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.is_negative == other.is_negative
            && self.count == other.count
            && self.exponent == other.exponent
            && self.digits().eq(other.digits())
    }
}

fn to_i64(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn e_3_numbers_are_equal_by_exact_value() {
        let equal = [
            ("1", "1.0"),
            ("1", "1e0"),
            ("100", "1E+2"),
            ("0.001", "1e-3"),
            ("0", "-0"),
            ("0", "0.000e99999999999999999999999"),
            ("1200e-2", "12.00"),
            ("-5", "-50e-1"),
            ("1e999999999", "10e999999998"),
            ("1e00000000000000000000000000002", "100"),
            ("1e99999999999999999999", "1E+99999999999999999999"),
        ];
        for (left, right) in equal {
            assert!(Decimal::of(left) == Decimal::of(right), "{left} is {right}");
        }
        let different = [
            ("9007199254740992", "9007199254740993"),
            ("0.1", "0.1000000000000000055"),
            ("1", "-1"),
            ("1", "10"),
            ("1e400", "1e401"),
            ("1e999999999", "1e-999999999"),
            ("1e99999999999999999999", "1e99999999999999999998"),
            ("1e99999999999999999999", "1e-99999999999999999999"),
            ("1e9999999999999999999999", "2e9999999999999999999999"),
        ];
        for (left, right) in different {
            assert!(Decimal::of(left) != Decimal::of(right), "{left} is not {right}");
        }
    }

    #[test]
    fn whole_parts_are_cut_towards_zero_and_bounded() {
        let cases = [
            ("0", 0, Some(0)),
            ("-0.0", 0, Some(0)),
            ("1.999", 0, Some(1)),
            ("1.999", 3, Some(1_999)),
            ("12e2", 0, Some(1_200)),
            ("1e-99999999999999999999", 0, Some(0)),
            ("1e-5", 3, Some(0)),
            ("5000", 0, Some(5_000)),
            ("5000.9", 0, Some(5_000)),
            ("5001", 0, None),
            ("-0.1", 0, None),
            ("1e18", 0, None),
            ("1e999999999", 0, None),
            ("1e99999999999999999999", 0, None),
        ];
        for (text, shift, expected) in cases {
            assert_eq!(Decimal::of(text).whole_part(shift, 5_000), expected, "{text}");
        }
    }

    /// The value as an integer number of 10^-60, written out.
    fn expanded(whole: &str, fraction: &str, power: i32) -> String {
        let digits = format!("{whole}{fraction}");
        let zeros = 60 - i32::try_from(fraction.len()).unwrap() + power;
        let all = format!("{digits}{}", "0".repeat(usize::try_from(zeros).unwrap()));
        all.trim_start_matches('0').to_owned()
    }

    proptest! {
        #[test]
        fn equality_agrees_with_written_out_values(
            left in ("[01]{1,3}", "[01]{0,3}", -6_i32..6),
            right in ("[01]{1,3}", "[01]{0,3}", -6_i32..6),
        ) {
            let text = |(whole, fraction, power): &(String, String, i32)| {
                let point = if fraction.is_empty() { "" } else { "." };
                format!("{whole}{point}{fraction}e{power}")
            };
            let value = |(whole, fraction, power): &(String, String, i32)| {
                expanded(whole, fraction, *power)
            };
            let expected = value(&left) == value(&right);

            let (left, right) = (text(&left), text(&right));
            prop_assert_eq!(Decimal::of(&left) == Decimal::of(&right), expected);
        }

        #[test]
        fn whole_parts_agree_with_integer_arithmetic(
            whole in 0_i64..10_000_000, fraction in "[0-9]{1,5}", shift in 0_i64..=3,
        ) {
            let scale = 10_i64.pow(u32::try_from(shift).unwrap());
            let padded: i64 = format!("{fraction:0<5}").parse().unwrap();
            let expected = (whole * 100_000 + padded) * scale / 100_000;

            let found = Decimal::of(&format!("{whole}.{fraction}")).whole_part(shift, i64::MAX);

            prop_assert_eq!(found, Some(expected));
        }
    }
}
