// Streams of C++.
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

extern "C" {
extern char bytes[300000], path[4096], other_path[4096];
void fill(int seed);
void show(const char *what, const char *from, long len);
void show_file(const char *name);
void iostreams(void);
}

void iostreams(void)
{
    fill(5);
    std::vector<char> back(700000);
    {
        std::ofstream out(path, std::ios::binary);
        for (int i = 0; i < 2; i++)
            out.write(bytes, sizeof bytes);
        for (int i = 0; i < 20000; i++)
            out << i << ' ' << i / 3.0 << '\n';
        printf("good %d, at %ld\n", out.good(), (long)out.tellp());
    }
    show_file(path);
    std::fstream both(path, std::ios::in | std::ios::out | std::ios::binary);
    both.seekp(123456);
    both << "in the middle" << std::flush;
    both.seekg(123400);
    both.read(back.data(), 100);
    show("read", back.data(), both.gcount());
    both.seekg(0, std::ios::end);
    printf("length %ld\n", (long)both.tellg());
    both.seekg(600000);
    std::string line;
    long lines = 0;
    while (std::getline(both, line))
        lines += (long)line.size();
    printf("lines of %ld, end %d\n", lines, both.eof());
    both.clear();
    both.seekg(0);
    both.read(back.data(), (long)back.size());
    show("all", back.data(), both.gcount());
    std::ifstream in(path, std::ios::binary);
    in.peek();
    printf("available %d\n", in.rdbuf()->in_avail() > 0);
    std::vector<char> again((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    show("again", again.data(), (long)again.size());
    std::ofstream(other_path, std::ios::app).write(bytes, 200000) << "appended";
    std::ofstream(other_path, std::ios::app) << "more";
    show_file(other_path);
}
