// Package prometheus writes metrics in Prometheus' text format, version 0.0.4.
package prometheus

import (
	"bytes"
	"fmt"
	"runtime"
	"strconv"
	"strings"
)

// ContentType is that of a Page in HTTP.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// A Page is a metrics page that is being built. Families are written to Text one after the other: a
// Registry of Prometheus' client library would first make objects of all samples, which for 5,000
// nodes takes 50 MB and 0.2 s of one CPU. The zero Page is empty.
type Page struct {
	Text    bytes.Buffer
	name    string   // of the family
	labels  []string // of the family
	samples int
}

// Kinds of families.
const (
	Counter   = "counter"
	Gauge     = "gauge"
	Histogram = "histogram"
)

// yieldEvery is the number of samples after which the page lets packets pass: about 20 µs.
const yieldEvery = 128

// Family begins a family of culvert's own: its name gets the prefix culvert_. Add adds its samples.
func (p *Page) Family(kind, name, help string, labels ...string) {
	p.Begin(kind, "culvert_"+name, help, labels...)
}

// Begin begins a family under its whole name.
func (p *Page) Begin(kind, name, help string, labels ...string) {
	p.name, p.labels = name, labels
	fmt.Fprintf(&p.Text, "# HELP %s %s\n# TYPE %s %s\n", p.name, help, p.name, kind)
}

var labelEscaper = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)

// Add adds a sample with a value for each label of the family.
func (p *Page) Add(value float64, labels ...string) { p.add("", value, labels, "") }

// add adds a sample, whose name is the family's with a suffix. The label le is the bound of a
// bucket; "" = there is none.
func (p *Page) add(suffix string, value float64, labels []string, le string) {
	p.Text.WriteString(p.name)
	p.Text.WriteString(suffix)
	next := byte('{')
	for i, label := range labels {
		p.label(next, p.labels[i], label)
		next = ','
	}
	if le != "" {
		p.label(next, "le", le)
	}
	if len(labels) > 0 || le != "" {
		p.Text.WriteByte('}')
	}
	p.Text.WriteByte(' ')
	p.Text.Write(strconv.AppendFloat(p.Text.AvailableBuffer(), value, 'g', -1, 64))
	p.Text.WriteByte('\n')
	if p.samples++; p.samples%yieldEvery == 0 {
		runtime.Gosched() // packets first
	}
}

func (p *Page) label(before byte, name, value string) {
	p.Text.WriteByte(before)
	p.Text.WriteString(name)
	p.Text.WriteString(`="`)
	p.Text.WriteString(labelEscaper.Replace(value))
	p.Text.WriteByte('"')
}

// Count adds a sample of a counter.
func (p *Page) Count(value uint64, labels ...string) { p.Add(float64(value), labels...) }

// One adds a family of one sample.
func (p *Page) One(kind, name, help string, value float64) {
	p.Family(kind, name, help)
	p.Add(value)
}

// Buckets adds a histogram. counts[i] is the number of values above bounds[i-1] and up to
// bounds[i]; the last count is of values above all bounds. sum is the sum of all values.
func (p *Page) Buckets(bounds []float64, counts []uint64, sum float64, labels ...string) {
	total := uint64(0)
	for i, n := range counts {
		total += n
		bound := "+Inf"
		if i < len(bounds) {
			bound = strconv.FormatFloat(bounds[i], 'g', -1, 64)
		}
		p.add("_bucket", float64(total), labels, bound)
	}
	p.add("_sum", sum, labels, "")
	p.add("_count", float64(total), labels, "")
}

// Bit is the value of a boolean in a sample.
var Bit = map[bool]float64{true: 1}
