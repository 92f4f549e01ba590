"""Whether everything that writer.py was told is written is in its file."""
import sys

parts = int(open(sys.argv[2]).read() or 0)
data = open(sys.argv[1], "rb").read()
for part in range(1, parts + 1):
    if data[(part - 1) * 30000 : part * 30000] != bytes([part % 251]) * 30000:
        sys.exit(f"part {part} of {parts} acknowledged is not in the file of {len(data)} bytes")
print(parts)
