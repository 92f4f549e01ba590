// Files as Node programs use them: at once, by positions, as streams; from its pool of threads.

const fs = require('fs')

const big = Buffer.alloc(3 << 20)
for (let i = 0; i < big.length; i++) big[i] = (i * 31) ^ (i >> 12)
fs.writeFileSync('whole', big)
fs.appendFileSync('whole', 'tail')

const fd = fs.openSync('parts', 'w+')
for (let i = 0; i < 2000; i++) fs.writeSync(fd, big, i * 7, 1000, i * 1000)
fs.fsyncSync(fd)
const back = Buffer.alloc(2000000)
fs.readSync(fd, back, 0, back.length, 0)
for (let i = 0; i < 2000; i++) {
    if (back.compare(big, i * 7, i * 7 + 1000, i * 1000, i * 1000 + 1000)) throw Error(`part ${i}`)
}
fs.ftruncateSync(fd, 1234567)
fs.closeSync(fd)

const lines = fs.createWriteStream('lines')
for (let i = 0; i < 3000; i++) lines.write(`line ${i}\n`)
lines.end(async () => {
    if (fs.readFileSync('lines', 'utf8').split('\n').length !== 3001) throw Error('lines')
    const copy = fs.createReadStream('whole').pipe(fs.createWriteStream('piped'))
    await new Promise((done) => copy.on('finish', done))
    if (fs.readFileSync('piped').compare(fs.readFileSync('whole'))) throw Error('piped')
    await fs.promises.copyFile('piped', 'copied')
    const many = [...Array(50).keys()].map((i) => fs.promises.writeFile(`many${i}`, big.subarray(i, 70000 + i)))
    await Promise.all(many)
    await fs.promises.rename('copied', 'renamed')
    console.log(fs.statSync('renamed').size)
})
