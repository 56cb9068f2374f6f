//! Random values that a JSON schema allows, the same in each run.

use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};

use crate::support::contract::Contract;

/// A generator of values that a schema allows, deterministic across runs.
pub(super) struct Draw<'a> {
    pub(super) contract: &'a Contract,
    runner: TestRunner,
    state: u64,
}

impl<'a> Draw<'a> {
    /// Creates a generator in its initial state.
    pub(super) fn new(contract: &'a Contract) -> Self {
        Self {
            contract,
            runner: TestRunner::deterministic(),
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// Returns an integer below `most`.
    pub(super) fn pick(&mut self, most: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        usize::try_from(self.state >> 33).unwrap() % most
    }

    /// Returns a number from 0 to 1, with both ends overrepresented.
    fn share(&mut self) -> f64 {
        match self.pick(6) {
            0 => 0.0,
            1 => 1.0,
            _ => self.pick(1_000_001) as f64 / 1e6,
        }
    }

    /// Resolves a reference to its schema.
    pub(super) fn resolved(&self, schema: &Value) -> Value {
        let named = schema["$ref"]
            .as_str()
            .and_then(|name| self.contract.document.pointer(name.trim_start_matches('#')));
        named.unwrap_or(schema).clone()
    }

    /// Returns a value that the schema allows.
    pub(super) fn value(&mut self, schema: &Value) -> Value {
        let judge = self.contract.judge(schema);
        for _ in 0..400 {
            let value = self.candidate(schema);
            if judge.is_valid(&value) {
                return value;
            }
        }
        panic!("nothing was found that is allowed: {schema}")
    }

    /// Returns a value of the right type, which may violate dependencies between fields.
    fn candidate(&mut self, schema: &Value) -> Value {
        let schema = &self.resolved(schema);
        if let Some(ways) = schema["anyOf"]
            .as_array()
            .filter(|ways| schema["type"].is_null() && ways[0]["$ref"].is_string())
        {
            let way = self.pick(ways.len());
            return self.candidate(&ways[way]);
        }
        if let Some(words) = schema["enum"].as_array() {
            return words[self.pick(words.len())].clone();
        }
        let kinds: Vec<&str> = match &schema["type"] {
            Value::String(kind) => vec![kind],
            Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
            _ => vec!["object", "string", "null"],
        };
        match kinds[self.pick(kinds.len())] {
            "null" => Value::Null,
            "boolean" => json!(self.pick(2) == 0),
            "integer" => {
                let (low, high) = (
                    schema["minimum"].as_i64().unwrap(),
                    schema["maximum"].as_i64().unwrap(),
                );
                json!(
                    low.saturating_add(((high as f64 - low as f64) * self.share()) as i64)
                        .min(high)
                )
            }
            "number" => self.number(schema),
            "string" => json!(self.text(schema)),
            "array" => (0..self.pick(4))
                .map(|_| self.candidate(&schema["items"]))
                .collect(),
            _ => self.object(schema),
        }
    }

    fn number(&mut self, schema: &Value) -> Value {
        let apart = schema["anyOf"]
            .as_array()
            .and_then(|ways| ways.iter().find_map(|way| way["enum"].as_array()));
        if let Some(apart) = apart.filter(|_| self.pick(4) == 0) {
            return apart[self.pick(apart.len())].clone();
        }
        let low = schema["minimum"]
            .as_f64()
            .or(schema["exclusiveMinimum"].as_f64().map(|low| low + 1e-3))
            .unwrap();
        // Most of a range of nine decades lies in the last one.
        let share = self.share().powi(3);
        json!(low + (schema["maximum"].as_f64().unwrap() - low) * share)
    }

    fn text(&mut self, schema: &Value) -> String {
        if schema["format"] == "date-time" {
            let zones = ["Z", "+02:00", "-07:30"];
            return format!(
                "20{}-0{}-1{}T0{}:30:00{}",
                27 + self.pick(7),
                1 + self.pick(9),
                self.pick(10),
                self.pick(10),
                zones[self.pick(3)]
            );
        }
        let pattern = schema["pattern"].as_str().unwrap_or("^.*$");
        // Look-aheads are unsupported by the generator, and only exclude zero here.
        let plain = pattern
            .replace("(?!ff)", "")
            .replace("(?!0{32})", "")
            .replace("(?!0{16})", "");
        let inner = plain.trim_start_matches('^').trim_end_matches('$');
        let most = schema["maxLength"]
            .as_u64()
            .map_or(40, |most| usize::try_from(most).unwrap());
        let least = schema["minLength"]
            .as_u64()
            .map_or(0, |least| usize::try_from(least).unwrap());
        let drawn = proptest::string::string_regex(inner).unwrap();
        let mut text = drawn.new_tree(&mut self.runner).unwrap().current();
        while text.len() > most {
            text.pop();
        }
        if self.pick(8) == 0
            && most < 5000
            && !text.is_empty()
            && text.is_ascii()
            && inner.ends_with(['*', '+'])
        {
            text = text.chars().cycle().take(most).collect();
        }
        while text.len() < least {
            text.push('a');
        }
        text
    }

    fn object(&mut self, schema: &Value) -> Value {
        let required: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut object = Map::new();
        let share = 1 + self.pick(4);
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            if required.contains(&name.as_str()) || self.pick(6) < share {
                object.insert(name.clone(), self.candidate(below));
            }
        }
        Value::Object(object)
    }
}
