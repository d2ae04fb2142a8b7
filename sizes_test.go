// SPDX-License-Identifier: Apache-2.0

package loxilight

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The sizes that no file and no function may exceed.
const (
	fileLinesMax     = 400
	functionLinesMax = 60
	branchesMax      = 25
	stageLinesMax    = 80 // of a C function
)

// TestFunctionSizes: no file or function exceeds the limits. Tests, test tools and generated code are
// exempt.
func TestFunctionSizes(t *testing.T) {
	for _, name := range trackedFiles(t, "*.go") {
		if strings.HasSuffix(name, "_test.go") || strings.Contains(name, "_bpfel.go") ||
			strings.HasPrefix(name, "tests/") || strings.HasPrefix(name, "internal/test") {
			continue
		}
		source, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if lines := bytes.Count(source, []byte("\n")); lines > fileLinesMax {
			t.Errorf("%s has %d lines, at most %d: split it", name, lines, fileLinesMax)
		}
		checkFunctions(t, name, source)
	}
	for _, pattern := range []string{"ebpf-src/*.h", "ebpf-src/*.c"} {
		for _, name := range trackedFiles(t, pattern) {
			checkStages(t, name)
		}
	}
}

func trackedFiles(t *testing.T, pattern string) []string {
	t.Helper()
	out, err := exec.Command("git", "ls-files", "-z", pattern).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == 0 })
}

// checkFunctions checks the functions of a Go file.
func checkFunctions(t *testing.T, name string, source []byte) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		lines := files.Position(f.End()).Line - files.Position(f.Pos()).Line + 1
		if n := branches(f.Body); lines > functionLinesMax || n > branchesMax {
			t.Errorf("%s: %s has %d lines and %d branch points, at most %d and %d", name, f.Name.Name, lines, n, functionLinesMax, branchesMax)
		}
	}
}

// branches counts the branch points of a function: conditions, loops, cases, && and ||.
func branches(body *ast.BlockStmt) (count int) {
	ast.Inspect(body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.IfStmt, *ast.ForStmt, *ast.RangeStmt:
			count++
		case *ast.CaseClause:
			if n.List != nil {
				count++
			}
		case *ast.CommClause:
			if n.Comm != nil {
				count++
			}
		case *ast.BinaryExpr:
			if n.Op == token.LAND || n.Op == token.LOR {
				count++
			}
		}
		return true
	})
	return count
}

// checkStages checks the functions of a C file, whose braces are in the first column.
func checkStages(t *testing.T, name string) {
	source, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	begin := 0
	for i, line := range strings.Split(string(source), "\n") {
		switch {
		case line == "{":
			begin = i
		case line == "}" && begin != 0:
			if n := i - begin - 1; n > stageLinesMax {
				t.Errorf("%s:%d: a function of %d lines, at most %d", name, begin, n, stageLinesMax)
			}
			begin = 0
		}
	}
}
