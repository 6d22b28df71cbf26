//! Views of floats as bytes and back, for buffers that hold any element type.

/// The bytes of `words`.
pub fn bytes(words: &[f32]) -> &[u8] {
    // SAFETY: every float is 4 initialised bytes, contiguous; `u8` has no alignment and takes any bits;
    // the borrow is the same.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

/// The bytes of `words`, to be written.
pub fn bytes_mut(words: &mut [f32]) -> &mut [u8] {
    // SAFETY: as in `bytes`; the borrow is exclusive, and any 4 bytes are a float.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), size_of_val(words)) }
}

/// `bytes` as whole floats, where they are aligned and as long as floats are.
pub fn words(bytes: &[u8]) -> Option<&[f32]> {
    if !bytes.as_ptr().cast::<f32>().is_aligned() || !bytes.len().is_multiple_of(size_of::<f32>()) {
        return None;
    }
    // SAFETY: aligned and a whole number of floats, as checked above; any 4 bytes are a float; the
    // borrow is the same.
    Some(unsafe {
        std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<f32>())
    })
}

/// `bytes` as whole floats, to be written, where they are aligned and as long as floats are.
pub fn words_mut(bytes: &mut [u8]) -> Option<&mut [f32]> {
    if !bytes.as_ptr().cast::<f32>().is_aligned() || !bytes.len().is_multiple_of(size_of::<f32>()) {
        return None;
    }
    let len = bytes.len() / size_of::<f32>();
    // SAFETY: as in `words`; the borrow is exclusive, and floats are bytes that `u8` takes back.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), len) })
}

/// `words` as integers of 16 bits, to be written: two for each.
pub fn shorts_mut(words: &mut [f32]) -> &mut [i16] {
    // SAFETY: as in `bytes_mut`; a float's alignment is more than enough, and any bits are an integer.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast(), 2 * words.len()) }
}
