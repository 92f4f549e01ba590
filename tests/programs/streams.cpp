// Streams of C++: formatted and raw, in every mode, with seeks in both directions, buffers of one's own, and std::filesystem.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fs = std::filesystem;

static unsigned long sum(const char *name) {
    std::ifstream in(name, std::ios::binary);
    unsigned long at = 5381;
    for (std::istreambuf_iterator<char> next(in), end; next != end; ++next)
        at = at * 33 + static_cast<unsigned char>(*next);
    return at;
}

int main() {
    {
        std::ofstream out("lines");
        for (int line = 0; line < 60000; line++)
            out << line << '\t' << std::setprecision(9) << line / 7.0 << ' ' << std::hex << line << std::dec << '\n';
    }
    {
        std::ifstream in("lines");
        std::string line;
        long count = 0, length = 0;
        while (std::getline(in, line)) count++, length += line.size();
        std::cout << count << ' ' << length << '\n';
        in.clear();
        in.seekg(1000);
        std::cout << in.tellg() << ' ' << (std::getline(in, line), line) << '\n';
        in.seekg(-30, std::ios::end);
        std::cout << (std::getline(in, line), std::getline(in, line), line) << '\n';
    }
    {
        std::vector<char> large(3000001);
        for (size_t at = 0; at < large.size(); at++) large[at] = static_cast<char>(at * 31 >> 3);
        std::ofstream("raw", std::ios::binary).write(large.data(), large.size());
        std::fstream both("raw", std::ios::in | std::ios::out | std::ios::binary);
        for (long step = 0; step < 3000; step++) {
            long at = step * 7919 % 2990000;
            char piece[600];
            both.seekg(at);
            both.read(piece, sizeof piece);
            for (char &byte : piece) byte = static_cast<char>(byte + step);
            both.seekp(at);
            both.write(piece, step % 600);
        }
        both.seekp(0, std::ios::end);
        both << "the end";
    }
    {
        std::vector<char> buffer(1 << 17);
        std::ofstream out;
        out.rdbuf()->pubsetbuf(buffer.data(), buffer.size());
        out.open("buffered", std::ios::app);
        for (int line = 0; line < 20000; line++) out << "buffered " << line << std::endl;
        out.close();
        std::ofstream unbuffered;
        unbuffered.rdbuf()->pubsetbuf(nullptr, 0);
        unbuffered.open("buffered", std::ios::app | std::ios::ate);
        for (int line = 0; line < 500; line++) unbuffered << line << ' ';
    }
    {
        std::vector<std::thread> threads;
        for (int number = 0; number < 4; number++)
            threads.emplace_back([number] {
                std::ofstream out("thread-" + std::to_string(number));
                for (int line = 0; line < 5000; line++) out << number << ' ' << line << '\n';
            });
        for (auto &thread : threads) thread.join();
    }
    {
        std::wofstream wide("wide");
        wide << L"wide letters\n";
        FILE *c = std::fopen("mixed", "w");
        std::fputs("from C\n", c);
        std::fclose(c);
        std::ofstream("mixed", std::ios::app) << "from C++\n";
        std::ifstream in("mixed");
        std::ofstream("copied") << in.rdbuf();
    }
    fs::copy_file("raw", "raw.copy");
    fs::resize_file("raw.copy", 100000);
    fs::rename("copied", "renamed");
    std::cout << fs::file_size("raw") << ' ' << fs::file_size("raw.copy") << ' ' << fs::file_size("buffered") << '\n';
    for (const char *name : {"lines", "raw", "raw.copy", "buffered", "thread-2", "wide", "renamed"})
        std::cout << name << ' ' << sum(name) << '\n';
    return 0;
}
