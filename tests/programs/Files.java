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
        java.nio.file.Files.copy(Path.of("two"), Path.of("three"));
        java.nio.file.Files.move(Path.of("three"), Path.of("four"));
        System.out.println(java.nio.file.Files.size(Path.of("four")));
    }
}
