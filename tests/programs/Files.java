import java.io.FileOutputStream;
import java.io.RandomAccessFile;
import java.nio.ByteBuffer;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Arrays;
import java.util.Random;

/** Files as Java programs use them: streams, positions, channels, maps, copies. */
public class Files {
    static void check(boolean right, String what) {
        if (!right) throw new IllegalStateException(what);
    }

    /** All of a file through a map, each byte; what is stored into a private one stays out of the file. */
    static void mapped(Path path, FileChannel.MapMode mode, byte[] bytes) throws Exception {
        StandardOpenOption[] options = mode == FileChannel.MapMode.READ_ONLY
            ? new StandardOpenOption[] {StandardOpenOption.READ}
            : new StandardOpenOption[] {StandardOpenOption.READ, StandardOpenOption.WRITE};
        try (FileChannel channel = FileChannel.open(path, options)) {
            MappedByteBuffer map = channel.map(mode, 0, channel.size());
            check(map.remaining() == bytes.length, "bytes of a map");
            for (int at = 0; at < bytes.length; at++) check(map.get(at) == bytes[at], mode + " " + path + ", byte " + at);
            if (mode == FileChannel.MapMode.PRIVATE) {
                for (int at = 5; at < bytes.length; at += 10_007) map.put(at, (byte) ~bytes[at]);
                for (int at = 0; at < bytes.length; at++) {
                    byte expected = at % 10_007 == 5 ? (byte) ~bytes[at] : bytes[at];
                    check(map.get(at) == expected, "private " + path + ", byte " + at);
                }
                check(Arrays.equals(java.nio.file.Files.readAllBytes(path), bytes), "what a private map has stored");
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        byte[] bytes = new byte[3_000_000];
        new Random(1).nextBytes(bytes);
        try (FileOutputStream out = new FileOutputStream("one")) {
            for (int at = 0; at < bytes.length; at += 777) out.write(bytes, at, Math.min(777, bytes.length - at));
        }
        check(Arrays.equals(java.nio.file.Files.readAllBytes(Path.of("one")), bytes), "written");
        try (RandomAccessFile file = new RandomAccessFile("one", "rw")) {
            file.seek(12345);
            file.write(bytes, 0, 5000);
            file.setLength(2_000_000);
            FileChannel channel = file.getChannel();
            ByteBuffer read = ByteBuffer.allocateDirect(5000);
            check(channel.read(read, 12345) == 5000, "read");
            read.flip();
            for (int at = 0; at < 5000; at++) check(read.get() == bytes[at], "byte " + at);
            channel.force(true);
            MappedByteBuffer map = channel.map(FileChannel.MapMode.READ_WRITE, 0, 4096);
            map.put(0, (byte) 9);
            map.force();
            file.seek(0);
            check(file.read() == 9, "what the map has written");
            file.write(77);
            check(map.get(1) == 77, "what the map sees");
            try (FileChannel to = FileChannel.open(Path.of("two"), StandardOpenOption.CREATE, StandardOpenOption.WRITE)) {
                channel.transferTo(0, channel.size(), to);
            }
        }
        check(java.nio.file.Files.mismatch(Path.of("one"), Path.of("two")) == -1, "transferred");
        // Each in a file that nobody has mapped before: a map lasts until its object is collected.
        for (FileChannel.MapMode mode : new FileChannel.MapMode[] {FileChannel.MapMode.READ_ONLY, FileChannel.MapMode.PRIVATE}) {
            Path path = Path.of("mapped-" + mode);
            try (FileOutputStream out = new FileOutputStream(path.toString())) {
                for (int at = 0; at < bytes.length; at += 777) out.write(bytes, at, Math.min(777, bytes.length - at));
            }
            mapped(path, mode, bytes);
            mapped(path, FileChannel.MapMode.PRIVATE, bytes);
            mapped(path, FileChannel.MapMode.READ_ONLY, bytes);
        }
        java.nio.file.Files.copy(Path.of("two"), Path.of("three"));
        java.nio.file.Files.move(Path.of("three"), Path.of("four"));
        System.out.println(java.nio.file.Files.size(Path.of("four")));
    }
}
