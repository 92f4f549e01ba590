//! The kernel's protocol for file systems in user space, as `include/uapi/linux/fuse.h` has it (version 7.45): structures that travel, numbers
//! of operations, flags.
//!
//! Each structure is its fields one after the other, in the machine's byte order; where C would leave a gap the protocol has a field of its own.
//! So they are read and written field by field, and nothing here depends on how the compiler lays them out.

/// Something that travels: a number, an array of numbers, a structure.
pub(crate) trait Field: Sized {
    const SIZE: usize;
    /// From exactly [`Field::SIZE`] bytes.
    fn from_wire(bytes: &[u8]) -> Self;
    /// To exactly [`Field::SIZE`] bytes.
    fn to_wire(&self, bytes: &mut [u8]);
}

macro_rules! numbers {
    ($($kind:ident)*) => {$(
        impl Field for $kind {
            const SIZE: usize = size_of::<$kind>();

            fn from_wire(bytes: &[u8]) -> Self {
                let mut number = [0; size_of::<$kind>()];
                number.copy_from_slice(bytes);
                $kind::from_ne_bytes(number)
            }

            fn to_wire(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_ne_bytes());
            }
        }
    )*};
}

numbers!(u16 u32 i32 u64 i64);

impl<T: Field + Copy + Default, const N: usize> Field for [T; N] {
    const SIZE: usize = T::SIZE * N;

    fn from_wire(bytes: &[u8]) -> Self {
        let mut all = [T::default(); N];
        for (one, bytes) in all.iter_mut().zip(bytes.chunks_exact(T::SIZE)) {
            *one = T::from_wire(bytes);
        }
        all
    }

    fn to_wire(&self, bytes: &mut [u8]) {
        for (one, bytes) in self.iter().zip(bytes.chunks_exact_mut(T::SIZE)) {
            one.to_wire(bytes);
        }
    }
}

/// Nothing.
impl Field for () {
    const SIZE: usize = 0;

    fn from_wire(_bytes: &[u8]) -> Self {}

    fn to_wire(&self, _bytes: &mut [u8]) {}
}

/// Declares structures: their fields in the protocol's order, and with them their size, how they are read and how they are written.
macro_rules! structures {
    ($($(#[$about:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $($(#[$of])* pub(crate) $field: $kind,)*
        }

        #[allow(dead_code, reason = "some are only read here, some only written")]
        impl $name {
            pub(crate) const SIZE: usize = 0 $(+ <$kind as Field>::SIZE)*;

            /// Reads it from the beginning of `bytes`; `None` if there are too few.
            pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
                bytes.get(..Self::SIZE).map(Self::from_wire)
            }

            pub(crate) fn bytes(&self) -> [u8; Self::SIZE] {
                let mut bytes = [0; Self::SIZE];
                self.to_wire(&mut bytes);
                bytes
            }
        }

        impl Field for $name {
            const SIZE: usize = Self::SIZE;

            fn from_wire(bytes: &[u8]) -> Self {
                let rest = bytes;
                $(let ($field, rest) = rest.split_at(<$kind as Field>::SIZE);)*
                let _ = rest;
                $name { $($field: <$kind as Field>::from_wire($field),)* }
            }

            fn to_wire(&self, bytes: &mut [u8]) {
                let rest = bytes;
                $(
                    let ($field, rest) = rest.split_at_mut(<$kind as Field>::SIZE);
                    self.$field.to_wire($field);
                )*
                let _ = rest;
            }
        }
    )*};
}

mod flags;
#[cfg(test)]
mod laid_out;
pub(crate) mod opcode;
mod structures;

pub(crate) use flags::*;
pub(crate) use structures::*;

/// How many bytes an operation says of itself, before names and bytes to write. Of those that nobody serves 0: they are not looked at.
pub(crate) fn own_bytes(operation: u32) -> usize {
    use opcode::*;
    match operation {
        FORGET => ForgetIn::SIZE,
        GETATTR => GetattrIn::SIZE,
        SETATTR => SetattrIn::SIZE,
        MKNOD => MknodIn::SIZE,
        MKDIR => MkdirIn::SIZE,
        RENAME => RenameIn::SIZE,
        RENAME2 => Rename2In::SIZE,
        LINK => LinkIn::SIZE,
        OPEN | OPENDIR => OpenIn::SIZE,
        CREATE | TMPFILE => CreateIn::SIZE,
        READ | READDIR | READDIRPLUS => ReadIn::SIZE,
        WRITE => WriteIn::SIZE,
        RELEASE | RELEASEDIR => ReleaseIn::SIZE,
        FSYNC | FSYNCDIR => FsyncIn::SIZE,
        FLUSH => FlushIn::SIZE,
        SETXATTR => SetxattrIn::SIZE,
        GETXATTR | LISTXATTR => GetxattrIn::SIZE,
        INIT => InitIn::SIZE,
        BATCH_FORGET => BatchForgetIn::SIZE,
        FALLOCATE => FallocateIn::SIZE,
        LSEEK => LseekIn::SIZE,
        IOCTL => IoctlIn::SIZE,
        COPY_FILE_RANGE => CopyFileRangeIn::SIZE,
        _ => 0,
    }
}
