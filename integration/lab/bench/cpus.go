package bench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"strings"

	"culvert/gateway/node"
	"culvert/integration/lab"
)

// cpusVariants are gateways on 1, 2, 4 … Ps, and on all CPUs.
func cpusVariants(reference bool) (counts []int, all []*lab.Variant) {
	for n := 1; n < runtime.NumCPU(); n *= 2 {
		counts = append(counts, n)
	}
	counts = append(counts, runtime.NumCPU())
	for _, n := range counts {
		all = append(all, &lab.Variant{Name: cpusName(false, n), Procs: n})
		if reference {
			all = append(all, &lab.Variant{Name: cpusName(true, n), Reference: true, Procs: n})
		}
	}
	return counts, all
}

func cpusName(reference bool, n int) string {
	if reference {
		return fmt.Sprintf("reference, %d P", n)
	}
	return fmt.Sprintf("culvert, %d P", n)
}

// takeCPUs measures gateways by their number of Ps, in alternating runs.
func (b *bench) takeCPUs(ctx context.Context, reference bool) error {
	// bits and bytes are per packet, in the units of rate and cost.
	alone := func(name string, size int, rate, cost rowID, bits, bytes float64) measurement {
		return measurement{name: name, take: func(ctx context.Context, v *lab.Variant) error {
			if v.Reference { // it does not count encrypted packets
				return nil
			}
			packets, seconds, used, err := b.alone(ctx, v, size)
			if err == nil {
				b.record(v, rate, packets*bits/seconds)
				b.record(v, cost, used/(packets*bytes))
			}
			return err
		}}
	}
	_, variants := cpusVariants(reference)
	return b.alternate(ctx, b.times.runs, []measurement{
		b.streams("one stream", rowTCP1, 1, 0),
		b.streams("eight streams", rowTCP8, 8, 0),
		b.streams("eight streams each way", rowTCP8Both, 8, 8),
		b.datagrams("datagrams of 64 bytes", rowUDP64, 64),
		alone("one gateway alone, 1312 bytes", aloneSize, rowAlone, rowAloneCost, 8*aloneSize, aloneSize),
		alone("one gateway alone, 64 bytes", aloneSmall, rowAloneSmall, rowAloneSmallCost, 1, 1),
	}, variants, func(v *lab.Variant) { b.record(v, rowOthers, b.totals[v.Name].streams.used.others()) })
}

// cpusReport is the result of a bench by CPUs.
type cpusReport struct {
	conditions
	Rows []cpusRow `json:"rows"`
}

type cpusRow struct {
	Name string     `json:"name"`
	Unit string     `json:"unit"`
	By   []cpusCell `json:"byCPUs"`
}

type cpusCell struct {
	CPUs      int      `json:"cpus"`
	Culvert   Figure   `json:"culvert"`
	Reference *Figure  `json:"reference,omitempty"`
	Ratio     *float64 `json:"ratio,omitempty"` // of the medians
}

func (b *bench) printCPUs(out io.Writer, mode node.Mode, o Options) error {
	r := cpusReport{conditions: b.conditions(mode, o)}
	counts, _ := cpusVariants(false)
	for _, row := range b.rows {
		if len(row.figures) == 0 {
			continue
		}
		x := cpusRow{Name: row.Name, Unit: row.Unit}
		for _, n := range counts {
			cell := cpusCell{CPUs: n, Culvert: summarise(row.figures[cpusName(false, n)], row.scale)}
			if other := row.figures[cpusName(true, n)]; len(other) > 0 {
				f := summarise(other, row.scale)
				ratio := cell.Culvert.Median / f.Median
				cell.Reference, cell.Ratio = &f, &ratio
			}
			x.By = append(x.By, cell)
		}
		r.Rows = append(r.Rows, x)
	}
	if o.JSON {
		return printJSON(out, r)
	}
	var text strings.Builder
	fmt.Fprint(&text, r.conditions.String(),
		"alone = one gateway gets trains of a node and encrypts them for nobody, beside the sender on another CPU\n"+
			"reference = kernel VXLAN + nftables + wireguard-go on a TUN device\n")
	widths := []int{benchNameWidth, 5, benchFigureWidth, benchFigureWidth, benchRatioWidth}
	writeLine(&text, widths, []string{"", "CPUs", "culvert", "reference", "ratio"})
	for _, row := range r.Rows {
		name := row.Name + " " + row.Unit
		for _, c := range row.By {
			reference, ratio := "–", ""
			if c.Reference != nil {
				reference, ratio = c.Reference.String(), formatFigure(*c.Ratio)
			}
			writeLine(&text, widths, []string{name, fmt.Sprint(c.CPUs), c.Culvert.String(), reference, ratio})
			name = ""
		}
	}
	warnOfOthers(&text, b.rows.others())
	_, err := io.WriteString(out, text.String())
	return err
}
