//! The process says which system calls it may make from now on (seccomp), or which files it may open (Landlock). Those that the library
//! makes for it are not among them, as a rule: it leaves the session first, and does nothing any more.

use super::Args;
use crate::files::{Given, Why};
use crate::inside::Inside;
use crate::{attach, parting};

const STRICT: u64 = 1;
const FILTER: u64 = 2;

/// `prctl(option, ...)`. A call that asks for no filter asks whether there may be one.
pub fn control(args: &Args) -> Given {
    let option = args[0] as libc::c_int;
    let confines = args[1] == STRICT || args[1] == FILTER && args[2] != 0;
    if option == libc::PR_SET_SECCOMP && confines {
        return confine();
    }
    Ok(())
}

/// `seccomp(operation, flags, filter)`.
pub fn filter(args: &Args) -> Given {
    match args[0] as libc::c_uint {
        libc::SECCOMP_SET_MODE_STRICT => confine(),
        libc::SECCOMP_SET_MODE_FILTER if args[2] != 0 => confine(),
        _ => Ok(()),
    }
}

/// `landlock_restrict_self(rules, flags)`.
pub fn restrict(_args: &Args) -> Given {
    confine()
}

fn confine() -> Given {
    if Inside::is() || !attach::is_asked() || attach::is_confined() {
        return Ok(());
    }
    parting::leave(Why::Identity)?;
    attach::confine();
    Ok(())
}
