package cli

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Width returns the number of columns for text to w: that of its terminal. It is 0 if there is no
// limit, because lines in a pipe or a file are for programs.
func Width(w io.Writer) int {
	switch w := w.(type) {
	case interface{ Width() int }:
		return w.Width()
	case *os.File:
		if size, err := unix.IoctlGetWinsize(int(w.Fd()), unix.TIOCGWINSZ); err == nil {
			return int(size.Col)
		}
	}
	return 0
}

// A Page buffers text for a terminal with Columns columns.
type Page struct {
	strings.Builder
	Columns int
}

// Width makes the function Width return p.Columns for p.
func (p *Page) Width() int { return p.Columns }

// Wrap breaks a sentence at blanks into lines of at most width columns, and indents all but the
// first by two; a width of 0 leaves it whole. It replaces characters that a terminal would obey.
func Wrap(text string, width int) string {
	return strings.Join(split(Printable(text), width, "  "), "\n")
}

// WrapLines breaks each line of a text at blanks into lines of at most width columns, below each
// other: those of an element of a list behind its "- ".
func WrapLines(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimLeft(line, " ")
		indent, hanging := line[:len(line)-len(body)], ""
		if strings.HasPrefix(body, "- ") {
			hanging = "  "
		}
		parts := split(Printable(body), width-len(indent), hanging)
		b.WriteString(indent + strings.Join(parts, "\n"+indent) + "\n")
	}
	return b.String()
}

// Printable replaces everything that is neither printable nor a blank: parts of the text are
// written by others, and a terminal obeys control characters.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || unicode.IsSpace(r) && r != '\r' {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// longWord is the minimum length of a word that may be broken after each slash, such as the name of
// a rule or a path.
const longWord = 30

// pieces returns the parts of a word that must not be broken.
func pieces(word string) []string {
	if len(word) < longWord {
		return []string{word}
	}
	return strings.SplitAfter(word, "/")
}

// split breaks text at blanks into lines of at most width columns. A wider word gets a line of its
// own.
func split(text string, width int, indent string) []string {
	var lines []string
	var line strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		for k, piece := range pieces(word) {
			n, blank := utf8.RuneCountInString(piece), 0
			if k == 0 {
				blank = 1
			}
			switch {
			case i == 0 && k == 0:
			case width > 0 && column+blank+n > width:
				lines = append(lines, line.String())
				line.Reset()
				line.WriteString(indent)
				column = len(indent)
			default:
				line.WriteString(" "[:blank])
				column += blank
			}
			line.WriteString(piece)
			column += n
		}
	}
	return append(lines, line.String())
}

// A Table aligns text written to it as rows of cells, separated by tabs. A block of rows ends at an
// empty line. If a block is too wide for w's terminal, cells are broken at blanks, the widest
// column first.
type Table struct {
	w    io.Writer
	text bytes.Buffer
}

// NewTable returns a Table that Flush prints to w.
func NewTable(w io.Writer) *Table { return &Table{w: w} }

// Write keeps rows until Flush.
func (t *Table) Write(p []byte) (int, error) { return t.text.Write(p) }

// Flush prints what was written since the last one.
func (t *Table) Flush() error {
	var out strings.Builder
	var rows [][]string
	for line := range strings.Lines(t.text.String()) {
		if line = strings.TrimSuffix(line, "\n"); line != "" {
			rows = append(rows, strings.Split(line, "\t"))
			continue
		}
		printRows(&out, rows, Width(t.w))
		rows = nil
		out.WriteByte('\n')
	}
	printRows(&out, rows, Width(t.w))
	t.text.Reset()
	_, err := io.WriteString(t.w, out.String())
	return err
}

// gap is the number of blanks between two columns of a table.
const gap = 2

func printRows(out *strings.Builder, rows [][]string, width int) {
	var widths, least []int // of columns, and of their widest words
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths, least = append(widths, 0), append(least, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			for _, word := range strings.Fields(cell) {
				for _, piece := range pieces(word) {
					least[i] = max(least[i], utf8.RuneCountInString(piece))
				}
			}
		}
	}
	whole := -gap
	for _, n := range widths {
		whole += n + gap
	}
	for ; width > 0 && whole > width; whole-- {
		widest := -1
		for i, n := range widths {
			if n > least[i] && (widest < 0 || n > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			break
		}
		widths[widest]--
	}
	for _, row := range rows {
		cells, height := make([][]string, len(row)), 1
		for i, cell := range row {
			cells[i] = []string{cell} // unchanged, with its blanks
			if utf8.RuneCountInString(cell) > widths[i] {
				cells[i] = split(cell, widths[i], "")
			}
			height = max(height, len(cells[i]))
		}
		for k := range height {
			var line strings.Builder
			for i := range cells {
				part := ""
				if k < len(cells[i]) {
					part = cells[i][k]
				}
				line.WriteString(part + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(part)+gap))
			}
			out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
		}
	}
}

// helpWidth is the maximum width of help.
const helpWidth = 100

// fill rewraps the paragraphs of a text, except lists, headings and commands.
func fill(text string, width int) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		if !slices.ContainsFunc(strings.Split(p, "\n"), isList) {
			paragraphs[i] = strings.Join(split(p, width, ""), "\n")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// isList reports whether a line must not be joined with others.
func isList(line string) bool {
	return slices.ContainsFunc([]string{" ", "\t", "- ", "# "}, func(begin string) bool {
		return strings.HasPrefix(line, begin)
	})
}
