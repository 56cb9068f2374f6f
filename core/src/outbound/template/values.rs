//! Values of a template's data, which charge the rendering's budget as they are read.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr, Serde};

use super::budget::RenderBudget;

/// Wraps data in values whose parts are counted as they are read, and which have no more parts when
/// the rendering must end.
pub(super) fn watched(data: &serde_json::Value, work: &RenderBudget) -> Value {
    match data {
        serde_json::Value::Array(items) => {
            let items = items.iter().map(|item| watched(item, work)).collect();
            Value::from_object(TemplateList {
                items,
                work: work.clone(),
            })
        }
        serde_json::Value::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, field)| (name.clone(), watched(field, work)))
                .collect();
            Value::from_object(TemplateObject {
                fields,
                work: work.clone(),
            })
        }
        other => Value::from(Serde(other)),
    }
}

/// Returns the cost of reading a value before its whole content is used; such uses are counted
/// separately, or check the clock.
fn bytes_of(value: &Value) -> usize {
    value.as_str().map_or(1, str::len).min(4096)
}

#[derive(Debug)]
struct TemplateList {
    items: Vec<Value>,
    work: RenderBudget,
}

impl TemplateList {
    fn at(&self, place: usize) -> Option<Value> {
        self.items
            .get(place)
            .filter(|item| self.work.goes_on(bytes_of(item)))
            .cloned()
    }
}

impl Object for TemplateList {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.at(key.as_usize()?)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let list = self.clone();
        Enumerator::Iter(Box::new(BoundedIter {
            next: 0,
            of: self.items.len(),
            read: Box::new(move |place| list.at(place)),
        }))
    }
}

#[derive(Debug)]
struct TemplateObject {
    fields: BTreeMap<String, Value>,
    work: RenderBudget,
}

impl Object for TemplateObject {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.fields
            .get(key)
            .filter(|field| self.work.goes_on(bytes_of(field)))
            .cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let (names, work): (Vec<Value>, _) = (
            self.fields.keys().map(Value::from).collect(),
            self.work.clone(),
        );
        let of = names.len();
        let read = move |place: usize| {
            names
                .get(place)
                .filter(|name| work.goes_on(bytes_of(name)))
                .cloned()
        };
        Enumerator::Iter(Box::new(BoundedIter {
            next: 0,
            of,
            read: Box::new(read),
        }))
    }
}

/// An iterator over `of` parts, which ends early if one cannot be read.
struct BoundedIter {
    next: usize,
    of: usize,
    read: Box<dyn Fn(usize) -> Option<Value> + Send + Sync>,
}

impl Iterator for BoundedIter {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let item = (self.read)(self.next);
        self.next = if item.is_some() {
            self.next + 1
        } else {
            self.of
        };
        item
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.of.saturating_sub(self.next);
        (left, Some(left))
    }
}
