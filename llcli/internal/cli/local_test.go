// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// exec plays a program of the machine: it does as the file says that is called as
// the program, whose first line is the exit code and the rest the output. Without
// such a file, and without session.program, it cannot be run.
func (s *session) exec(_ context.Context, stdout, stderr io.Writer, name string, args ...string) (int, error) {
	text, err := s.program, error(nil)
	if text == "" {
		var file []byte
		if file, err = os.ReadFile(strings.TrimPrefix(name, "/sbin/")); err != nil {
			return 0, err
		}
		text = string(file)
	}
	first, rest, _ := strings.Cut(text, "\n")
	code, err := strconv.Atoi(first)
	if err != nil {
		return 0, err
	}
	if _, err := io.WriteString(stdout, rest); err != nil {
		return 0, err
	}
	_, err = fmt.Fprintf(stderr, "loxilightd: run as %s %s\n", name, strings.Join(args, " "))
	return code, err
}
