"""Tables in files: parquet, Arrow's own formats and CSV, whole, in parts, by row groups and by maps."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq

source = np.random.default_rng(2)
rows = 120_000
table = pa.table({
    "number": np.arange(rows),
    "value": source.random(rows),
    "kind": pa.array([f"kind {number % 7}" for number in range(rows)]).dictionary_encode(),
    "text": [None if number % 11 == 0 else "x" * (number % 40) for number in range(rows)],
})
for codec in ("none", "snappy", "zstd"):
    pq.write_table(table, f"{codec}.parquet", compression=codec, row_group_size=20_000)
    assert pq.read_table(f"{codec}.parquet").equals(table)
with pq.ParquetWriter("appended.parquet", table.schema) as writer:
    for start in range(0, rows, 7_000):
        writer.write_table(table.slice(start, 7_000))
file = pq.ParquetFile("appended.parquet", memory_map=True)
print(file.num_row_groups, pc.sum(file.read_row_group(3, columns=["value"])["value"]))
assert pq.read_table("appended.parquet", filters=[("number", ">=", 100_000)]).num_rows == rows - 100_000
pyarrow.dataset.write_dataset(table, "parts", format="parquet", partitioning=["kind"], use_threads=False)
parts = pyarrow.dataset.dataset("parts", partitioning=["kind"])
print(len(parts.files), parts.count_rows(), pc.sum(parts.to_table(columns=["number"])["number"]))
pyarrow.feather.write_feather(table, "table.feather", compression="lz4")
assert pyarrow.feather.read_table("table.feather").equals(table)
with pa.OSFile("stream.arrow", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
    for batch in table.to_batches(9_000):
        writer.write_batch(batch)
with pa.memory_map("stream.arrow") as mapped:
    assert pa.ipc.open_stream(mapped).read_all().equals(table)
with pa.create_memory_map("map", 1 << 20) as mapped:
    mapped.write(b"\5" * (1 << 20))
with open("map", "rb") as file:
    assert file.read() == b"\5" * (1 << 20)
pyarrow.csv.write_csv(table.slice(0, 30_000), "table.csv")
print(pyarrow.csv.read_csv("table.csv").num_rows, os.path.getsize("table.csv"))
print("tables are right")
