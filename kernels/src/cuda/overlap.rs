//! Which kernels of a graph may start before their predecessor has ended: programmatic launch, and its switch.
//!
//! This module reads no environment: the caller does, and shows the switch in banner and identity.

/// First words of all operations' names.
const OPERATIONS: [&str; 12] = [
    "embed",
    "norm",
    "linear",
    "rope",
    "attend",
    "conv",
    "delta",
    "route",
    "expert_up",
    "expert_down",
    "fold",
    "argmax",
];

/// The operations that programmatic launch is taken from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Prefixes of operations' names; an empty one is every operation's.
    off: Vec<String>,
}

impl Overlap {
    /// What the switch's `value` leaves: prefixes of operations' names with commas between them
    /// (`linear/bf16xbf16,norm`) take those, any other value that is set takes all; none and `0` take nothing.
    pub fn without(value: &str) -> Self {
        let list: Vec<String> = value.split(',').map(|v| v.trim().to_owned()).collect();
        let known = |prefix: &String| OPERATIONS.iter().any(|op| prefix.starts_with(op));
        let off = match value {
            "" | "0" => Vec::new(),
            _ if list.iter().all(known) => list,
            _ => vec![String::new()],
        };
        Self { off }
    }

    /// Whether kernels of the operation called `op` may start early.
    pub fn allows(&self, op: &str) -> bool {
        !self.off.iter().any(|prefix| op.starts_with(prefix.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_switch_takes_all_or_what_it_names() {
        for (value, linear, norm) in [
            ("", true, true),
            ("0", true, true),
            ("1", false, false),
            ("yes", false, false),
            ("linear", false, true),
            ("linear/bf16xbf16,norm", false, false),
            ("linear/bf16xq4_k", true, true),
            ("norm,nrom", false, false),
        ] {
            let overlap = Overlap::without(value);
            assert_eq!(
                (overlap.allows("linear/bf16xbf16"), overlap.allows("norm")),
                (linear, norm),
                "{value}"
            );
        }
    }
}
