// What a program of Go does with files, in the directory where it is started: goroutines that write, append, rename, link, list and
// compare. It is built without C, so it is static, and every call is its own. It says what it has found, the same wherever it runs.
package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
)

func must(err error) {
	if err != nil {
		fmt.Println("fails:", err)
		os.Exit(1)
	}
}

// Runs something for each number, by several goroutines.
func each(count int, work func(number int)) {
	var all sync.WaitGroup
	for first := 0; first < 8; first++ {
		all.Add(1)
		go func(first int) {
			defer all.Done()
			for number := first; number < count; number += 8 {
				work(number)
			}
		}(first)
	}
	all.Wait()
}

func path(number int) string { return fmt.Sprintf("files/%d/file %d", number%10, number) }

// Files that take the places of others, as programs save them.
func saved() {
	for number := 0; number < 10; number++ {
		must(os.MkdirAll(fmt.Sprintf("files/%d", number), 0o755))
	}
	each(200, func(number int) {
		for round := 1; round <= 2; round++ {
			text := bytes.Repeat([]byte(fmt.Sprintf("file %d, round %d\n", number, round)), number*20)
			must(os.WriteFile(path(number)+".new", text, 0o640))
			file, err := os.Open(path(number) + ".new")
			must(err)
			if number%20 == 0 {
				must(file.Sync())
			}
			must(file.Close())
			must(os.Rename(path(number)+".new", path(number)))
		}
	})
	must(os.Link(path(1), "linked"))
	must(os.Symlink(path(2), "points"))
	target, err := os.Readlink("points")
	must(err)
	fmt.Println("points to", target)
	must(os.Truncate("linked", 7))
	must(os.Remove(path(3)))
	_, err = os.Stat(path(3))
	fmt.Println("gone:", os.IsNotExist(err))
	_, err = os.OpenFile(path(4), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	fmt.Println("there already:", os.IsExist(err))
}

// Lines that goroutines append, each by an opening of its own: none is lost, none is torn.
func appended() {
	each(400, func(number int) {
		file, err := os.OpenFile("appended", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
		must(err)
		_, err = fmt.Fprintf(file, "%03d\n", number)
		must(err)
		must(file.Close())
	})
	all, err := os.ReadFile("appended")
	must(err)
	seen := map[string]int{}
	for _, line := range bytes.Fields(all) {
		seen[string(line)]++
	}
	fmt.Println("appended", len(all), "bytes,", len(seen), "lines")
	must(os.Remove("appended")) // Who came first differs.
}

// Pieces that goroutines write by offset and copy by the kernel, with a hole between them.
func pieces() {
	file, err := os.Create("pieces")
	must(err)
	each(64, func(number int) {
		_, err := file.WriteAt(bytes.Repeat([]byte{byte(number)}, 5000), int64(number)*12000)
		must(err)
	})
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 1<<19, syscall.PROT_READ, syscall.MAP_PRIVATE)
	must(err)
	fmt.Printf("mapped %x\n", sha256.Sum256(mapped))
	must(syscall.Munmap(mapped))
	_, err = file.Seek(0, io.SeekStart)
	must(err)
	copied, err := os.Create("copied")
	must(err)
	n, err := io.Copy(copied, file)
	must(err)
	fmt.Println("copied", n)
	must(syscall.Flock(int(file.Fd()), syscall.LOCK_EX))
	second, err := os.Open("pieces")
	must(err)
	fmt.Println("locked:", syscall.Flock(int(second.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == syscall.EWOULDBLOCK)
	must(second.Close())
	must(copied.Close())
	must(file.Close())
}

// Everything that is there, in the order of names.
func listed() {
	must(filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		must(err)
		known, err := entry.Info()
		must(err)
		if !known.Mode().IsRegular() {
			fmt.Println(path, known.Mode())
			return nil
		}
		all, err := os.ReadFile(path)
		must(err)
		fmt.Printf("%s %v %d %x\n", path, known.Mode(), known.Size(), sha256.Sum256(all))
		return nil
	}))
}

func main() {
	syscall.Umask(0o022)
	saved()
	appended()
	pieces()
	listed()
}
