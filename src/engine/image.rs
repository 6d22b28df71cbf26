//! A loaded program as bytes: a description, encoded, and one block with all its weights.
//!
//! Weights are packed one by one, wherever the heap has room. Once all are packed, the program is made
//! an image of, and read back from it: then every weight is a view of one block, which was mapped for
//! them alone, the heap is free of them, and what was loaded now is what a cache file gives later.
//!
//! Two things are not encoded as they are, and know it from the thread that is making or reading an
//! image: weights ([`put`], [`block`]), and what several owners share, which is encoded once
//! ([`shared`]).

use crate::limits::BUFFER_ALIGN_BYTES;
use crate::sys::region::Region;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

/// A program's bytes.
#[derive(Debug, Clone)]
pub struct Image {
    /// Everything but the weights.
    pub description: Vec<u8>,
    /// In which the weights lie.
    pub region: Arc<Region>,
    /// Where in it their block begins.
    pub from: usize,
    /// How long the block is.
    pub len: usize,
}

/// An image that is being made.
struct Writing {
    /// Where weights are copied to; nowhere while they are counted.
    block: Option<Region>,
    len: usize,
    /// Numbers of what is shared, by address.
    numbers: HashMap<usize, u32>,
}

/// An image that is being read.
struct Reading {
    region: Arc<Region>,
    from: usize,
    /// What is shared, by number.
    known: HashMap<u32, Arc<dyn Any + Send + Sync>>,
}

thread_local! {
    static WRITING: RefCell<Option<Writing>> = const { RefCell::new(None) };
    static READING: RefCell<Option<Reading>> = const { RefCell::new(None) };
}

/// Ends what a thread is making or reading, whatever happens.
struct Done;

impl Drop for Done {
    fn drop(&mut self) {
        WRITING.take();
        READING.take();
    }
}

impl Image {
    /// Makes an image of `program`, its weights copied into one region.
    ///
    /// # Errors
    /// If something in it can't be encoded, or there is no memory.
    pub fn of<T: Serialize>(program: &T) -> Result<Image, String> {
        let _done = Done;
        // Once to know how long the block is, once to fill it.
        let start = |block| {
            WRITING.set(Some(Writing { block, len: 0, numbers: HashMap::new() }));
            postcard::to_extend(program, Vec::new()).map_err(|e| e.to_string())
        };
        start(None)?;
        let len = WRITING.take().map_or(0, |w| w.len);
        let block = Region::zeroed(len.max(1)).map_err(|e| e.to_string())?;
        let description = start(Some(block))?;
        let block = WRITING.take().and_then(|w| w.block).ok_or("the block is gone")?;
        Ok(Image { description, region: Arc::new(block), from: 0, len })
    }

    /// Reads a program, whose weights are then views of the region.
    ///
    /// # Errors
    /// If it is not what [`of`](Self::of) made of a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, String> {
        let _done = Done;
        READING.set(Some(Reading {
            region: self.region.clone(),
            from: self.from,
            known: HashMap::new(),
        }));
        postcard::from_bytes(&self.description).map_err(|e| e.to_string())
    }

    /// The block of weights.
    pub fn weights(&self) -> &[u8] {
        &self.region.as_slice()[self.from..][..self.len]
    }
}

/// Puts weights into the image that this thread is making; where they begin in its block.
pub fn put(bytes: &[u8]) -> Result<u64, &'static str> {
    WRITING.with_borrow_mut(|writing| {
        let writing = writing.as_mut().ok_or("weights are encoded in an image only")?;
        let at = writing.len;
        writing.len = at
            .checked_add(bytes.len())
            .and_then(|end| end.checked_next_multiple_of(BUFFER_ALIGN_BYTES))
            .ok_or("too many weights")?;
        if let Some(block) = writing.block.as_mut().and_then(Region::as_mut_slice) {
            let place = block.get_mut(at..at + bytes.len()).ok_or("the program changed")?;
            place.copy_from_slice(bytes);
        }
        Ok(at as u64)
    })
}

/// The region of the image that this thread is reading, and where in it the weights begin.
pub fn block() -> Result<(Arc<Region>, usize), &'static str> {
    READING.with_borrow(|reading| {
        let reading = reading.as_ref().ok_or("weights are decoded from an image only")?;
        Ok((reading.region.clone(), reading.from))
    })
}

/// For `#[serde(with)]`: what has several owners is encoded with the first, and named by the others.
pub mod shared {
    use super::*;

    /// Encodes it if this thread's image has not got it yet.
    pub fn serialize<T: Serialize, S: Serializer>(
        it: &Arc<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let number = WRITING.with_borrow_mut(|writing| {
            let writing = writing.as_mut()?;
            let next = writing.numbers.len() as u32;
            let known = writing.numbers.insert(Arc::as_ptr(it) as usize, next);
            if let Some(known) = known {
                writing.numbers.insert(Arc::as_ptr(it) as usize, known);
            }
            Some((known.unwrap_or(next), known.is_none()))
        });
        let Some((number, first)) = number else {
            return Err(ser::Error::custom("what is shared is encoded in an image only"));
        };
        (number, first.then_some(&**it)).serialize(serializer)
    }

    /// Decodes it, or finds it among what was decoded.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Arc<T>, D::Error>
    where
        T: Deserialize<'de> + Send + Sync + 'static,
        D: Deserializer<'de>,
    {
        let (number, it) = <(u32, Option<T>)>::deserialize(deserializer)?;
        let it = it.map(Arc::new);
        READING
            .with_borrow_mut(|reading| {
                let known = &mut reading.as_mut()?.known;
                match it {
                    Some(it) => {
                        known.insert(number, it.clone());
                        Some(it)
                    }
                    None => known.get(&number)?.clone().downcast().ok(),
                }
            })
            .ok_or_else(|| de::Error::custom("something shared is missing"))
    }
}

/// The same for a list.
pub mod shared_list {
    use super::*;

    #[derive(Serialize, Deserialize)]
    #[serde(bound = "T: Serialize + DeserializeOwned + Send + Sync + 'static")]
    struct One<T>(#[serde(with = "shared")] Arc<T>);

    /// Encodes each that this thread's image has not got yet.
    pub fn serialize<T, S>(list: &[Arc<T>], serializer: S) -> Result<S::Ok, S::Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        S: Serializer,
    {
        serializer.collect_seq(list.iter().map(|it| One(it.clone())))
    }

    /// Decodes a list.
    pub fn deserialize<'de, T, D>(deserializer: D) -> Result<Vec<Arc<T>>, D::Error>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        D: Deserializer<'de>,
    {
        let list = Vec::<One<T>>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|one| one.0).collect())
    }
}

#[cfg(test)]
mod tests;
