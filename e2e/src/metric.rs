//! Parses the Prometheus text format.
//!
//! * In: the text of `/metrics`. Out: samples with names and labels. Always: malformed lines are skipped.

/// One line: `name{label="value",…} number`.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl Sample {
    /// Returns true when the sample has all the given labels; additional labels are ignored.
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.labels.iter().any(|(own, own_value)| own == name && own_value == value))
    }
}

pub fn parse(text: &str) -> Vec<Sample> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(sample).collect()
}

fn sample(line: &str) -> Option<Sample> {
    let name_end = line.find(['{', ' '])?;
    let (name, mut rest) = line.split_at_checked(name_end)?;
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        loop {
            rest = rest.trim_start_matches([',', ' ']);
            if let Some(after) = rest.strip_prefix('}') {
                rest = after;
                break;
            }
            let (label, after) = rest.split_once("=\"")?;
            let (value, after) = quoted(after)?;
            labels.push((label.to_owned(), value));
            rest = after;
        }
    }
    // A timestamp may follow the value.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The unescaped text up to the closing quote, and the text after it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, text.get(at + 1..)?)),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_labels_and_values() {
        let text = "# HELP x y\nup 1\nq{name=\"a,\\\"b}\",le=\"+Inf\"} 2.5e3 1700\nnan NaN\nbroken{a=\"\n";
        let samples = parse(text);
        assert_eq!(samples.len(), 3);
        assert_eq!(samples[0], Sample { name: "up".into(), labels: vec![], value: 1.0 });
        assert!(samples[1].has(&[("name", "a,\"b}"), ("le", "+Inf")]));
        assert!(!samples[1].has(&[("le", "1")]));
        assert_eq!(samples[1].value, 2500.0);
        assert!(samples[2].value.is_nan());
    }
}
