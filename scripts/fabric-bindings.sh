#!/usr/bin/env bash
# Makes the definitions of libfabric's structures anew, from the headers of libfabric-dev, by bindgen (package bindgen). They are committed:
# neither a build nor a test needs either.
set -eu
cd "$(dirname "$0")/.."
out=crates/forebay-pool/src/fabric/bindings.in
headers=$(mktemp --suffix=.h)
trap 'rm -f "$headers"' EXIT
for header in fabric fi_domain fi_endpoint fi_eq fi_cm fi_rma fi_errno; do
    printf '#include <rdma/%s.h>\n' "$header"
done >"$headers"
types='fi_info|fid_fabric|fid_domain|fid_ep|fid_av|fid_cq|fid_mr|fi_cq_entry|fi_cq_err_entry|fi_cq_attr|fi_av_attr|fi_context2'
values='FI_(SOURCE|RMA|READ|WRITE|REMOTE_READ|REMOTE_WRITE|RECV|TRANSMIT|DELIVERY_COMPLETE|EAGAIN|EAVAIL|GETWAIT|ENABLE|WAIT_FD|WAIT_NONE|CONTEXT|CONTEXT2)'
values+='|^FI_(MR_LOCAL|MR_VIRT_ADDR|MR_ALLOCATED|MR_PROV_KEY|MR_ENDPOINT|EP_RDM|THREAD_SAFE|CQ_FORMAT_CONTEXT|AV_TABLE|SOCKADDR_IN6?|ADDR_STR|(MAJOR|MINOR)_VERSION)'
{
    printf '// Structures of libfabric, as its headers have them: made by `scripts/fabric-bindings.sh`, and not changed by hand.\n\n'
    bindgen "$headers" --no-layout-tests --no-doc-comments --default-enum-style consts --no-prepend-enum-name --use-core --ctypes-prefix libc \
        --allowlist-type "$types" --allowlist-var "$values" 2>/dev/null || true
} >"$out.new"
mv "$out.new" "$out"
rustfmt --edition 2024 "$out"
