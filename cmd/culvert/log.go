package main

import (
	"fmt"
	"maps"

	"github.com/sirupsen/logrus"
)

// newLogger logs to standard error with the given format and level.
func newLogger(level, format string) (*logrus.Logger, error) {
	log := logrus.New()
	l, err := logrus.ParseLevel(level)
	if err != nil {
		return nil, fmt.Errorf("log.level: %w", err)
	}
	log.SetLevel(l)
	if format == "json" {
		log.SetFormatter(jsonFormatter{})
	}
	return log, nil
}

// jsonFormatter formats values like the text format: encoding/json would write a duration or a role
// as a number.
type jsonFormatter struct{ logrus.JSONFormatter }

func (f jsonFormatter) Format(e *logrus.Entry) ([]byte, error) {
	printed := *e
	printed.Data = maps.Clone(e.Data)
	for key, value := range printed.Data {
		switch value.(type) {
		case bool, string, int, int64, uint16, uint64, float64:
		default:
			printed.Data[key] = fmt.Sprint(value)
		}
	}
	return f.JSONFormatter.Format(&printed)
}
