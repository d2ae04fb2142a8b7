// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"
)

// ReadLines reads the user's input, until ctx is done. The end of the input closes the channel.
func (a *App) ReadLines(ctx context.Context) <-chan string {
	lines := make(chan string)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(a.In)
		for scanner.Scan() {
			select {
			case lines <- scanner.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	return lines
}

// LocalTime converts a time from the daemon to the user's time zone.
func (a *App) LocalTime(text string) string {
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return text
	}
	return t.In(a.Now().Location()).Format("2006-01-02 15:04:05")
}

// Sure asks a question at the terminal, and reports whether the answer is yes.
func (a *App) Sure(ctx context.Context, question string) bool {
	_, _ = fmt.Fprint(a.Err, question) // if this fails, the user gives no answer
	select {
	case line := <-a.ReadLines(ctx):
		word := strings.ToLower(strings.TrimSpace(line))
		return word == "yes" || word == "y"
	case <-ctx.Done():
		return false
	}
}
