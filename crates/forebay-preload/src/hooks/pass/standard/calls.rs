//! What of stdio may be the first use of a standard stream. `calls/wrapped.txt` lists them, too.

use std::arch::naked_asm;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::c_void;

use super::super::{Args, Real, common, or, pass};
use super::{Stream, instead, oriented, used, used_wide};
use crate::streams::{FILENO, WIDE};
use crate::symbols::Name;
use crate::table::STANDARD;

/// Assembly that puts the stream of a call, the address of libc's `FILE`, into `r11`.
macro_rules! stream {
    (Stream::Input) => {
        "mov r11, [rip + stdin@GOTPCREL]\nmov r11, [r11]"
    };
    (Stream::Output) => {
        "mov r11, [rip + stdout@GOTPCREL]\nmov r11, [r11]"
    };
    (Stream::Argument(0)) => {
        "mov r11, rdi"
    };
    (Stream::Argument(1)) => {
        "mov r11, rsi"
    };
    (Stream::Argument(2)) => {
        "mov r11, rdx"
    };
    (Stream::Argument(3)) => {
        "mov r11, rcx"
    };
    (Stream::Argument(4)) => {
        "mov r11, r8"
    };
}

/// A stub's way while the flag is not 0. One that is looked at for wide characters always looks.
///
/// Of the others most use a stream of another descriptor, and must be as cheap as without us: `csplit` moves its input to descriptor
/// 0, reads it by calls of its own, and writes millions of lines to other streams. `STANDARD` has a bit for descriptor 0 and one for 1.
/// `r10` and `r11` are free: no function of C has arguments there.
macro_rules! unless_other {
    (used, $($stream:tt)*) => {
        concat!(
            stream!($($stream)*),
            "\ntest r11, r11",
            "\njz {look}",
            "\nmov r11d, [r11 + {fileno}]",
            "\ncmp r11d, 1",
            "\nja 3b",
            "\nmovzx r10d, byte ptr [rip + {flag}]",
            "\nbt r10d, r11d",
            "\njnc 3b",
            "\njmp {look}",
        )
    };
    ($wide:ident, $($stream:tt)*) => {
        "jmp {look} // {fileno}"
    };
}

/// Stubs that cost a comparison and a jump while a flag is 0: no standard descriptor is one of ours, or no stream is either.
macro_rules! standard {
    ($flag:path, $used:ident; $($symbol:ident: $kind:ident :: $which:ident $(($at:tt))?;)*) => {
        $(
            #[allow(non_snake_case)]
            mod $symbol {
                use super::*;

                static REAL: Real = Real::new();
                const NAME: Name = Name::new(concat!(stringify!($symbol), "\0"));
                /// Where it goes: to `look` while it is null, and from then on to the real function.
                static GOAL: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

                fn before(args: &Args) -> usize {
                    let given = $used(args, $kind::$which $(($at))?);
                    if given.is_err() {
                        return or(given, instead(NAME.as_c()));
                    }
                    let real = REAL.get(NAME);
                    GOAL.store(std::ptr::with_exposed_provenance_mut(real), Ordering::Relaxed);
                    real
                }

                extern "C-unwind" fn step(args: &Args) -> usize {
                    pass(args, before, NAME, &REAL)
                }

                /// # Safety
                /// For the stub only.
                #[unsafe(naked)]
                unsafe extern "C" fn look() {
                    naked_asm!(
                        "lea r11, [rip + {step}]",
                        "jmp {common}",
                        step = sym step,
                        common = sym common,
                    )
                }

                /// # Safety
                /// As the function of that name.
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                unsafe extern "C" fn $symbol() {
                    naked_asm!(
                        "cmp byte ptr [rip + {flag}], 0",
                        "jne 2f",
                        "3:",
                        "mov r11, [rip + {goal}]",
                        "test r11, r11",
                        "jz {look}",
                        "jmp r11",
                        "2:",
                        unless_other!($used, $kind::$which $(($at))?),
                        fileno = const FILENO,
                        flag = sym $flag,
                        look = sym look,
                        goal = sym GOAL,
                    )
                }
            }
        )*
    };
}

standard! {
    STANDARD, used;

    // To the standard output.
    printf: Stream::Output;
    vprintf: Stream::Output;
    wprintf: Stream::Output;
    vwprintf: Stream::Output;
    puts: Stream::Output;
    putchar: Stream::Output;
    putchar_unlocked: Stream::Output;
    putwchar: Stream::Output;
    putwchar_unlocked: Stream::Output;
    _IO_printf: Stream::Output;
    _IO_puts: Stream::Output;
    __printf_chk: Stream::Output;
    __vprintf_chk: Stream::Output;
    __wprintf_chk: Stream::Output;
    __vwprintf_chk: Stream::Output;
    argp_parse: Stream::Output;

    // From the standard input.
    getchar: Stream::Input;
    getchar_unlocked: Stream::Input;
    gets: Stream::Input;
    _IO_gets: Stream::Input;
    __gets_chk: Stream::Input;
    getwchar: Stream::Input;
    getwchar_unlocked: Stream::Input;
    scanf: Stream::Input;
    vscanf: Stream::Input;
    wscanf: Stream::Input;
    vwscanf: Stream::Input;
    __isoc99_scanf: Stream::Input;
    __isoc99_vscanf: Stream::Input;
    __isoc99_wscanf: Stream::Input;
    __isoc99_vwscanf: Stream::Input;
    __isoc23_scanf: Stream::Input;
    __isoc23_vscanf: Stream::Input;
    __isoc23_wscanf: Stream::Input;
    __isoc23_vwscanf: Stream::Input;
    getpass: Stream::Input;

    // With the stream in argument 0.
    fprintf: Stream::Argument(0);
    vfprintf: Stream::Argument(0);
    __fprintf_chk: Stream::Argument(0);
    __vfprintf_chk: Stream::Argument(0);
    _IO_fprintf: Stream::Argument(0);
    _IO_vfprintf: Stream::Argument(0);
    __overflow: Stream::Argument(0);
    fseek: Stream::Argument(0);
    fseeko: Stream::Argument(0);
    fseeko64: Stream::Argument(0);
    __fseeko64: Stream::Argument(0);
    fsetpos: Stream::Argument(0);
    fsetpos64: Stream::Argument(0);
    ftell: Stream::Argument(0);
    ftello: Stream::Argument(0);
    ftello64: Stream::Argument(0);
    __ftello64: Stream::Argument(0);
    fgetpos: Stream::Argument(0);
    fgetpos64: Stream::Argument(0);
    rewind: Stream::Argument(0);
    _IO_fgetpos: Stream::Argument(0);
    _IO_fgetpos64: Stream::Argument(0);
    _IO_fsetpos: Stream::Argument(0);
    _IO_fsetpos64: Stream::Argument(0);
    _IO_ftell: Stream::Argument(0);
    _IO_seekoff: Stream::Argument(0);
    _IO_seekpos: Stream::Argument(0);
    _IO_padn: Stream::Argument(0);
    setvbuf: Stream::Argument(0);
    setbuf: Stream::Argument(0);
    setbuffer: Stream::Argument(0);
    setlinebuf: Stream::Argument(0);
    _IO_setvbuf: Stream::Argument(0);
    _IO_setbuffer: Stream::Argument(0);
    getc: Stream::Argument(0);
    getc_unlocked: Stream::Argument(0);
    fgetc: Stream::Argument(0);
    fgetc_unlocked: Stream::Argument(0);
    _IO_getc: Stream::Argument(0);
    getw: Stream::Argument(0);
    fscanf: Stream::Argument(0);
    vfscanf: Stream::Argument(0);
    __isoc99_fscanf: Stream::Argument(0);
    __isoc99_vfscanf: Stream::Argument(0);
    __isoc23_fscanf: Stream::Argument(0);
    __isoc23_vfscanf: Stream::Argument(0);
    __vfscanf: Stream::Argument(0);
    _IO_vfscanf: Stream::Argument(0);
    __underflow: Stream::Argument(0);
    __uflow: Stream::Argument(0);
    _IO_sgetn: Stream::Argument(0);
    _IO_getline: Stream::Argument(0);
    _IO_getline_info: Stream::Argument(0);
    _IO_peekc_locked: Stream::Argument(0);
    fgetgrent: Stream::Argument(0);
    fgetgrent_r: Stream::Argument(0);
    fgetpwent: Stream::Argument(0);
    fgetpwent_r: Stream::Argument(0);
    fgetsgent: Stream::Argument(0);
    fgetsgent_r: Stream::Argument(0);
    fgetspent: Stream::Argument(0);
    fgetspent_r: Stream::Argument(0);
    getmntent: Stream::Argument(0);
    getmntent_r: Stream::Argument(0);
    __getmntent_r: Stream::Argument(0);
    addmntent: Stream::Argument(0);

    // With the stream in argument 1.
    fputs: Stream::Argument(1);
    fputs_unlocked: Stream::Argument(1);
    fputc: Stream::Argument(1);
    fputc_unlocked: Stream::Argument(1);
    putc: Stream::Argument(1);
    putc_unlocked: Stream::Argument(1);
    putw: Stream::Argument(1);
    _IO_putc: Stream::Argument(1);
    _IO_fputs: Stream::Argument(1);
    putgrent: Stream::Argument(1);
    putpwent: Stream::Argument(1);
    putsgent: Stream::Argument(1);
    putspent: Stream::Argument(1);
    malloc_info: Stream::Argument(1);
    argp_help: Stream::Argument(1);
    argp_state_help: Stream::Argument(1);

    // With the stream in argument 2.
    fgets: Stream::Argument(2);
    fgets_unlocked: Stream::Argument(2);
    _IO_fgets: Stream::Argument(2);
    getline: Stream::Argument(2);

    // With the stream in argument 3.
    fread: Stream::Argument(3);
    fread_unlocked: Stream::Argument(3);
    fwrite: Stream::Argument(3);
    fwrite_unlocked: Stream::Argument(3);
    _IO_fread: Stream::Argument(3);
    _IO_fwrite: Stream::Argument(3);
    getdelim: Stream::Argument(3);
    __getdelim: Stream::Argument(3);
    __fgets_chk: Stream::Argument(3);
    __fgets_unlocked_chk: Stream::Argument(3);

    // With the stream in argument 4.
    __fread_chk: Stream::Argument(4);
    __fread_unlocked_chk: Stream::Argument(4);
}

standard! {
    WIDE, used_wide;

    fwprintf: Stream::Argument(0);
    vfwprintf: Stream::Argument(0);
    __fwprintf_chk: Stream::Argument(0);
    __vfwprintf_chk: Stream::Argument(0);
    __woverflow: Stream::Argument(0);
    fgetwc: Stream::Argument(0);
    fgetwc_unlocked: Stream::Argument(0);
    getwc: Stream::Argument(0);
    getwc_unlocked: Stream::Argument(0);
    fwscanf: Stream::Argument(0);
    vfwscanf: Stream::Argument(0);
    __isoc99_fwscanf: Stream::Argument(0);
    __isoc99_vfwscanf: Stream::Argument(0);
    __isoc23_fwscanf: Stream::Argument(0);
    __isoc23_vfwscanf: Stream::Argument(0);
    __wunderflow: Stream::Argument(0);
    __wuflow: Stream::Argument(0);
    fputwc: Stream::Argument(1);
    fputwc_unlocked: Stream::Argument(1);
    putwc: Stream::Argument(1);
    putwc_unlocked: Stream::Argument(1);
    fputws: Stream::Argument(1);
    fputws_unlocked: Stream::Argument(1);
    fgetws: Stream::Argument(2);
    fgetws_unlocked: Stream::Argument(2);
    __fgetws_chk: Stream::Argument(3);
    __fgetws_unlocked_chk: Stream::Argument(3);
    ungetwc: Stream::Argument(1);
    _IO_sungetwc: Stream::Argument(0);
}

standard! {
    WIDE, oriented;

    fwide: Stream::Argument(0);
}
